"""Outer guests: starts them, shares them within a block, pauses and stops them."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from guestmark.core.discovery import list_settings_for
from guestmark.core.errors import GuestmarkError, PlatformUnusableError
from guestmark.core.factor import Machine
from guestmark.core.machine_facts import GuestMachine, OuterMachine
from guestmark.core.meminfo import read_meminfo
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import Layer, PlatformSpec
from guestmark.core.units import format_size
from guestmark.disks.image import Image, make_images
from guestmark.platforms.guest import Guest
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.platforms.qemu.nested.images import count_image_bytes
from guestmark.platforms.qemu.nested.place import PORTS, OuterPlace
from guestmark.platforms.qemu.platform import DEFAULTS, Extras, QemuPlatform
from guestmark.setting.base import quote_qemu_value
from guestmark.setting.disk import Disks
from guestmark.setting.machine import CPU, KERNEL, MEMORY, OUTER, OUTER_CPU, OUTER_SMP, PLACEMENT, SMP, Outer
from guestmark.setting.network import NETWORK, Network

HYPERVISOR_MODULES = ("kvm_amd", "kvm_intel")
# Modules for networks of inner guests; loading them would only delay the start of others.
_NETWORK_MODULES = ("tun", "vhost_net", "vhost_vsock", "veth", "af_packet")
# Bytes for an outer kernel, the inner hypervisor itself and the page cache of the files that it reads.
_OWN_MEMORY = 640 << 20
# Sizes are rounded up, so that cells with similar sizes can share an outer guest.
_MEMORY_STEP = 64 << 20


@dataclass(frozen=True, slots=True)
class OuterSpec:
    """The requirements for an outer guest. `ports` is the number of sets of ports, one for each layer inside it."""

    layer: Layer
    cpu: str
    smp: int
    kernel: str
    memory: int
    ports: int
    placement: str = ""
    # Whether the guest inside has a network.
    networked: bool = False

    @classmethod
    def for_cell(cls, cell: Cell) -> OuterSpec:
        """Returns the requirements of a nested cell: the inner guest's processors, and memory for all layers inside."""
        layers = cell.platform.layers
        outer = layers[0]
        kernel = ""
        if layers[-1].kind in ACCELERATORS:
            kernel = cell.levels.get(KERNEL) or ""
        return cls(
            outer,
            cell.levels.get(OUTER_CPU) or ACCELERATORS[outer.kind].outer_cpu,
            cell.levels.get(OUTER_SMP) or _count_processors(cell),
            kernel,
            compute_outer_memory(cell),
            len(layers) - 1,
            cell.factors.get(PLACEMENT.name, ""),
            _has_network(cell),
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The key of outer guests; cells with the same key can share one."""
        return (str(self.layer), self.cpu, str(self.smp), self.kernel, self.placement, str(self.networked))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that inner hypervisors need, if the kernel has them."""
        if self.networked:
            return (*HYPERVISOR_MODULES, *_NETWORK_MODULES)
        return HYPERVISOR_MODULES

    def make_cell(self) -> Cell:
        """Returns a cell with which the outer guest can be started."""
        factors = {MEMORY.name: format_size(self.memory), CPU.name: self.cpu, SMP.name: str(self.smp)}
        if self.kernel:
            factors[KERNEL.name] = self.kernel
        if self.placement:
            factors[PLACEMENT.name] = self.placement
        return Cell("outer", WorkloadSpec("outer"), PlatformSpec((self.layer,)), factors)


def _has_network(cell: Cell) -> bool:
    """Returns whether a cell's machine has a network."""
    return cell.levels.get(NETWORK) not in (None, Network.NONE)


def _count_processors(cell: Cell) -> int:
    return cell.levels.with_defaults(DEFAULTS)[SMP]


def compute_outer_memory(cell: Cell, layer: int = 0) -> int:
    """Returns the bytes of memory that outer guest `layer` of a cell needs, including all layers inside it.

    The outermost guest is layer 0.
    """
    outers = len(cell.platform.layers) - 1 - layer
    inner = cell.levels.with_defaults(DEFAULTS)[MEMORY]
    needed = inner + count_image_bytes(cell) + outers * _OWN_MEMORY
    return -(-needed // _MEMORY_STEP) * _MEMORY_STEP


def find_shortage(cells: Iterable[Cell]) -> PlatformUnusableError | None:
    """Returns why these nested cells do not fit into this host's free memory; None if they do."""
    available = read_meminfo()["MemAvailable"]
    for cell in cells:
        needed = compute_outer_memory(cell)
        if needed > available:
            inner = format_size(cell.levels.with_defaults(DEFAULTS)[MEMORY])
            images = count_image_bytes(cell)
            parts, hint = [f"{inner} for the inner guest"], "use less memory for it: --set memory=256M"
            if images:
                parts.append(f"{format_size(images)} for its disks")
                hint += " --set size=256M"
            outer = "the outer one" if len(cell.platform.layers) == 2 else "each of the outer ones"
            parts.append(f"{format_size(_OWN_MEMORY)} for {outer}")
            return PlatformUnusableError(
                f"{cell.platform} needs {format_size(needed)} ({', '.join(parts)}), "
                f"but this host has {format_size(available >> 20 << 20)} free",
                hint=hint,
            )
    return None


@dataclass(slots=True)
class RunningOuter:
    """A running outer guest; `trials` counts the inner guests that it has held."""

    spec: OuterSpec
    place: OuterPlace
    # The facts that were attested when it was started.
    found: GuestMachine
    started_for: str
    phases: Mapping[str, float]
    stack: contextlib.ExitStack = field(repr=False)
    trials: int = 0
    paused: bool = False

    def pause(self) -> None:
        """Pauses the guest: until it is resumed, it uses no processor time and its clocks stand still."""
        query = self.place.guest.query
        assert query is not None
        query("stop")
        self.paused = True

    def to_facts(self) -> OuterMachine:
        """Returns the attested facts, and how many inner guests it has held so far."""
        return OuterMachine(
            **msgspec.structs.asdict(self.found), started_for_each=self.started_for, inner_guest=self.trials
        )

    def resume(self) -> None:
        """Resumes the guest if it is paused."""
        query = self.place.guest.query
        assert query is not None
        if self.paused:
            query("cont")
            self.paused = False


class OuterGuests:
    """The outer guests of this process.

    Inside `share_in_block` every nested trial with `outer=block` (the default) uses the outer guest that an earlier
    trial started, if that still answers; otherwise each trial has its own.
    """

    def __init__(self) -> None:
        self._sharing = False
        self._held: dict[tuple[str, ...], RunningOuter] = {}
        self._cells: list[OuterSpec] = []

    @contextlib.contextmanager
    def share_in_block(self, cells: Iterable[Cell]) -> Iterator[None]:
        """Shares outer guests in one block of `cells`, and stops them when the block ends.

        They have memory and ports for the largest of these cells.
        """
        self._sharing = True
        self._cells = [OuterSpec.for_cell(cell) for cell in cells if _can_share(cell)]
        try:
            yield
        finally:
            self._sharing = False
            for held in list(self._held.values()):
                self._stop_shared(held)

    @contextlib.contextmanager
    def take_guest(self, cell: Cell, deadline: float) -> Iterator[RunningOuter]:
        """Starts or resumes the outer guest for a trial of `cell`; `deadline` is on the monotonic clock."""
        spec = OuterSpec.for_cell(cell)
        if not (self._sharing and _can_share(cell)):
            with contextlib.ExitStack() as stack:
                logged = [disk for disk in cell.view(Disks) if disk.logged]
                made = stack.enter_context(make_images(logged))
                yield _start_outer(spec, stack, deadline, Outer.TRIAL, made)
            return
        held = self._resume_shared(spec) or self._start_shared(spec, deadline)
        try:
            yield held
        finally:
            try:
                held.pause()
            except GuestmarkError:
                self._stop_shared(held)

    def _resume_shared(self, spec: OuterSpec) -> RunningOuter | None:
        held = self._held.get(spec.key)
        if held is None:
            return None
        try:
            held.resume()
            if held.place.is_alive() and held.spec.memory >= spec.memory and held.spec.ports >= spec.ports:
                return held
        except GuestmarkError:
            pass
        self._stop_shared(held)
        return None

    def _start_shared(self, spec: OuterSpec, deadline: float) -> RunningOuter:
        others = [cell for cell in self._cells if cell.key == spec.key] or [spec]
        large = OuterSpec(
            spec.layer, spec.cpu, spec.smp, spec.kernel,
            max(spec.memory, *(other.memory for other in others)), max(spec.ports, *(other.ports for other in others)),
            spec.placement, spec.networked,
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            held = _start_outer(large, stack, deadline, Outer.BLOCK)
            held.stack = stack.pop_all()
        self._held[spec.key] = held
        return held

    def _stop_shared(self, held: RunningOuter) -> None:
        self._held.pop(held.spec.key, None)
        held.stack.close()


OUTERS = OuterGuests()


def _can_share(cell: Cell) -> bool:
    if cell.view(Disks).any_logged:
        # A logged image is a disk of the outer guest, so each trial needs its own outer guest.
        return False
    return cell.platform.is_nested and cell.levels.get(OUTER) is not Outer.TRIAL


def _start_outer(
    spec: OuterSpec,
    stack: contextlib.ExitStack,
    deadline: float,
    started_for: str,
    made: Sequence[Image] = (),
) -> RunningOuter:
    """Starts an outer guest. The images in `made` become its disks, which it passes on to the guest inside it."""
    arguments = []
    for layer in range(spec.ports):
        for name in PORTS:
            port = _choose_port_name(layer, name)
            arguments += [
                "-chardev", f"socket,id={port},path={port},server=on,wait=off",
                "-device", f"virtserialport,chardev={port},name={port}",
            ]  # fmt: skip
    modules = spec.modules
    if made:
        modules += ("virtio_blk",)
    machine = spec.layer.architecture.outer_machine
    if machine and ACCELERATORS[spec.layer.kind].emulates:
        arguments += ["-machine", machine]
    guest = stack.enter_context(
        QemuPlatform(spec.layer).start(
            spec.make_cell(),
            max(1.0, deadline - time.monotonic()),
            Extras(
                (*arguments, *_build_disk_arguments(made)),
                modules=modules,
                ports=spec.ports * len(PORTS) + 1,
                writable=tuple(image.path for image in made),
                sockets=True,
            ),
        )
    )
    place = OuterPlace(guest, lambda name: _connect_port(guest, f"inner-{name}"))
    place.set_up()
    place.attached = {image.spec.role: image for image in made}
    return RunningOuter(spec, place, guest.attest(), started_for, dict(guest.phases), stack)


def _build_disk_arguments(made: Sequence[Image]) -> list[str]:
    """Returns QEMU's arguments for plain disks: only the inner hypervisor applies the cell's levels to them."""
    arguments = []
    for image in made:
        arguments += [
            "-drive", f"if=none,id={image.spec.name},file={quote_qemu_value(image.path)},format=raw",
            "-device", f"virtio-blk-pci,disable-legacy=on,drive={image.spec.name}",
        ]  # fmt: skip
    return arguments


def start_nested_outer(
    stack: contextlib.ExitStack, place: OuterPlace, cell: Cell, layer: int, left_s: float
) -> OuterPlace:
    """Starts an outer guest inside the outer guest `place`; `layer` is its layer, counted from the outermost, 0."""
    layers = cell.platform.layers
    mine, sets = layers[layer], len(layers) - 1 - layer
    modules = OuterSpec.for_cell(cell).modules
    lines = {}
    arguments = []
    for index in range(sets):
        for name in PORTS:
            port, above = _choose_port_name(index, name), _choose_port_name(index + 1, name)
            lines[port] = place.make_line(above.removeprefix("inner-"))
            arguments += ["-chardev", lines[port].format_chardev(port)]
            arguments += ["-device", f"virtserialport,chardev={port},name={port}"]
    factors = {
        MEMORY.name: format_size(compute_outer_memory(cell, layer)),
        CPU.name: ACCELERATORS[mine.kind].outer_cpu,
        SMP.name: str(_count_processors(cell)),
    }
    guest = stack.enter_context(
        QemuPlatform(mine).start(
            Cell("outer", WorkloadSpec("outer"), PlatformSpec((mine,)), factors),
            left_s,
            Extras(tuple(arguments), modules=modules, ports=len(lines) + 1),
            place,
        )
    )
    inside = OuterPlace(guest, lambda name: lines[f"inner-{name}"].own_socket())
    inside.set_up()
    return inside


def remove_outer_factors(cell: Cell, also: Collection[str] = ()) -> Cell:
    """Returns the cell without the factors of the guests around its innermost one, and without those in `also`."""
    others = {factor.name for factor in (*list_settings_for(Machine.OUTER), PLACEMENT)}.union(also)
    factors = {name: level for name, level in cell.factors.items() if name not in others}
    return replace(cell, factors=factors)


def _choose_port_name(layer: int, name: str) -> str:
    return f"inner-{name}" if layer == 0 else f"inner-{layer}-{name}"


def _connect_port(guest: Guest, name: str) -> socket.socket:
    """Connects to a socket in the scratch directory, whose path may be too long for a socket address."""
    directory = os.open(guest.process.scratch, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection
