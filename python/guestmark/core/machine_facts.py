"""Facts about machines, as attestation finds them: hosts, guests and nested guests; and their mounts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from guestmark.core.findings import Fact, Facts


class PlacementFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which of this host's processors each part of a machine had; lists as in `0,2-3`."""

    level: str  # of the factor
    processors: int
    machine: str
    emulator: str
    control: str
    nodes: list[int]
    remarks: list[str] | None = None


class ConfinementFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What confines a hypervisor, as the host's kernel reports it for its process."""

    # Whether every mount is read-only, except for the paths it needs.
    mounts: bool = False
    landlock: bool = False
    seccomp: bool = False  # some filter
    no_new_privileges: bool = False
    capabilities: int = 0  # how many it has
    # The namespaces that are not this host's: `pid`, `net`, `ipc`, `uts`, `mnt`, `user`.
    namespaces: list[str] | None = None
    # What it may connect to: `own` (paths that it may write), `local` (any path), `network`; None: anything.
    sockets: list[str] | None = None
    # Whether it may use io_uring, whose operations bypass seccomp filters.
    rings: bool | None = None
    # Limit of memory, helpers included.
    memory_bytes: int | None = None
    processes: int | None = None
    # The confinement of the daemon that serves the host's root, if there is one.
    shares: ConfinementFacts | None = None
    # The confinement of other programs that the guest talks to, by name.
    helpers: dict[str, ConfinementFacts] | None = None

    @property
    def protects_files(self) -> bool:
        """Whether the host's files cannot be changed, whatever the process does."""
        others = list((self.helpers or {}).values())
        if self.shares:
            others.append(self.shares)
        return (self.mounts or self.landlock) and all(other.protects_files for other in others)


class LinkEnd(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One end of a machine's network, as the kernel there reports its interface; lists of processors as in `0,2-3`."""

    driver: str
    mtu: int
    # Offloads that are on; `fixed` has the ones that cannot be changed.
    offloads: list[str]
    fixed: list[str] = msgspec.field(default_factory=list)
    queues: int = 1
    ring: int | None = None
    # Processors that may take each interrupt.
    interrupts: list[str] = msgspec.field(default_factory=list)
    # Numbers of the features that a virtio driver and its device agreed on.
    virtio: list[int] | None = None
    congestion_control: str
    ipv6: bool = False


class VsockEnd(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A guest's device for sockets to its hypervisor's kernel."""

    driver: str
    # The context identifier that the device told the guest.
    cid: int
    # Numbers of the features that the driver and its device agreed on.
    virtio: list[int]


class Mover(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A process that carries traffic between the ends, identified by its activity during a probe."""

    program: str  # the path of its executable
    version: str
    # Whether it was built without optimisation or with sanitizers; None if its executable does not tell.
    debug: bool | None = None
    cpu_s: float  # its processor time for these bytes
    # By what it was found: `tap`, `namespace`, `hypervisor`.
    found_by: list[str]


class NetworkFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The network of a machine, as attested: both ends, and the processes that carry traffic between them."""

    network: str  # the level
    # None if the machine's kernel shows no interface.
    machine: LinkEnd | None = None
    peer: LinkEnd | None = None
    # The machine's device where it has no interface but sockets.
    vsock: VsockEnd | None = None
    # Empty if this host's kernel alone moves them.
    movers: list[Mover] = msgspec.field(default_factory=list)
    # The kernel's thread that moves them for the hypervisor.
    vhost: bool = False
    # Processors that the peer may use.
    peer_processors: str
    # Bytes that were sent as a probe.
    probe_bytes: int


class MachineFacts(Fact, kw_only=True):
    """Facts about a machine of some kind, as attested."""

    placement: PlacementFacts | None = None
    confined: ConfinementFacts | None = None
    network: NetworkFacts | None = None


class HostMachine(MachineFacts, kw_only=True):
    """This host, as the agent on it sees it."""

    kernel: str
    arch: str
    boot_id: str
    processors: int | None


class EmulatedPrograms(HostMachine, kw_only=True):
    """This host running programs of another architecture, each emulated on its own."""

    programs_arch: str  # as `uname -m` says it there
    # Whether every program is emulated, or only the first one.
    emulated: str


class Sandboxed(HostMachine, kw_only=True, omit_defaults=True):
    """A sandbox on this host; `kernel` is the kernel that answers `uname` in it."""

    # The runtime's program; `version` is that of the program.
    runtime: str
    version: str
    # Type of the root filesystem, as the sandbox sees it.
    root: str
    # The text of `/proc/version` inside.
    proc_version: str
    # Whether a kernel other than this host's answers system calls.
    own_kernel: bool = False
    # How such a kernel intercepts system calls: ptrace, systrap, kvm.
    mechanism: str = ""
    # The namespaces that differ from this host's and from the runtime's own.
    namespaces: list[str]
    # The seccomp mode of the process that holds the programs: off, strict or filter.
    seccomp: str
    filters: int  # of them
    no_new_privileges: bool
    capabilities: int  # how many it has
    # How its users are mapped, as in /proc/PID/uid_map; empty if they are this host's.
    users: str
    # Memory limit of its control group; None without a limit.
    memory_bytes: int | None = None


class Connection(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The connection to another machine, and how its clock has drifted from this host's since the trial began."""

    # The fastest of several pings before the trial.
    round_trip_ns: int
    last_round_trip_ns: int = 0  # the fastest one after the trial
    # How much faster its clock runs, as a fraction.
    clock_drift: float | None = None
    # The uncertainty of that drift, due to the duration of the round trips.
    clock_drift_error: float | None = None


class RemoteMachine(MachineFacts, kw_only=True, omit_defaults=True):
    """Another machine, as the agent on it sees it."""

    dest: str
    # A value that distinguishes it from other machines without naming it.
    machine: str
    kernel: str
    arch: str
    boot_id: str
    processors: int
    cpu: str
    memory_bytes: int
    clocksource: str
    # `none`, `kvm`, `vmware`, …; empty if neither processor nor firmware tell.
    hypervisor: str = ""
    hypervisor_leaf: str = ""  # CPUID's twelve characters
    vendor: str = ""  # by DMI
    product: str = ""
    microcode: str = ""
    governor: str = ""
    mitigations: dict[str, str] = msgspec.field(default_factory=dict)
    # What was done before the trial to make it fresh; empty if nothing was.
    fresh: str = ""
    is_this_host: bool = False
    connection: Connection


class LibvirtDisk(msgspec.Struct, kw_only=True):
    """One disk of a domain, as libvirt describes it."""

    name: str
    bus: str
    format: str
    cache: str
    # False if writes to it are thrown away.
    keeps: bool


class Libvirt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What libvirt reports about a running domain."""

    domain: str
    uuid: str
    accelerator: str  # kvm, qemu (that is TCG), …
    machine: str
    cpu: str
    emulator: str
    hypervisor: str  # and its version
    version: str  # libvirt's own
    disks: list[LibvirtDisk] = msgspec.field(default_factory=list)
    # How the machine that answers was identified as this domain.
    known_by: str = ""


class LibvirtMachine(RemoteMachine, kw_only=True, omit_defaults=True):
    """A domain of libvirt, as libvirt and the agent on it see it."""

    libvirt: Libvirt


# The prefix of the ids of user-defined machines, by which people recognise who created them.
OWN_MACHINE_PREFIX = "guestmark-"
OWN_MACHINE_ID = re.compile(rf"\b{OWN_MACHINE_PREFIX}[0-9a-f]{{16}}\b")


class OwnKernel(StrEnum):
    """Whose kernel answers system calls in a machine that the user defined."""

    OWN = "its own"
    HOSTS = "this host's"
    THERE = "that of the host it was made on"
    GVISOR = "gVisor's"


class OwnInside(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Facts about a machine that the user defined, collected inside it."""

    kernel_is: OwnKernel
    # Signs of a container manager, in its own words.
    signs: str = ""
    # Processors that may really be used, limited by affinity and quota.
    processors: float
    # Memory that may really be used: the kernel's, or the limit of the control group.
    memory_bytes: int
    root_filesystem: str = ""
    distribution: str = ""


class OwnSnapshotFacts(msgspec.Struct, kw_only=True):
    """The snapshot from which a machine that the user defined was restored, as seen from inside."""

    # Distinguishes the snapshot from others of the block.
    template: str
    clone: int  # the first is 1
    # Seconds that making the snapshot took; the first clone waited for it.
    template_s: float = 0.0
    # Whether programs of the saved machine run on, and whether its files are there.
    programs: bool
    files: bool

    def describe(self) -> str:
        """Describe which parts of the saved machine continue."""
        if self.programs:
            return "programs and files continue" if self.files else "programs continue, files do not"
        return "files continue, programs do not"


class OwnMachine(RemoteMachine, kw_only=True, omit_defaults=True):
    """A machine created by the user's own commands, as seen by the agent inside it."""

    definition: str  # its name
    # SHA-256 of the definition's text.
    digest: str
    # The output of its command `version`.
    version: str = ""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    # In the definition's own currency; None if it gives no price.
    price_per_hour: float | None = None
    inside: OwnInside
    # Whether its commands are timed from outside, because no agent can be reached inside it.
    plain: bool = False
    # None for a machine that was created.
    restored: OwnSnapshotFacts | None = None


class Vmm(msgspec.Struct, kw_only=True):
    """What a hypervisor reports about the machine it runs."""

    accelerator: str
    kvm_present: bool
    processors: int
    cpu: str  # the processors' model
    memory_bytes: int
    qemu: str  # its version


class RunBy(msgspec.Struct, kw_only=True):
    """The program and version of a hypervisor without a monitor."""

    name: str
    version: str


class Inside(msgspec.Struct, kw_only=True):
    """What a guest's own kernel reports about the machine."""

    kernel: str
    root: str  # type of the root filesystem
    arch: str
    boot_id: str
    cpu: str
    processors: int
    memory_bytes: int
    clocksource: str
    cpu_flags_missing: list[str]  # that the host has
    cpu_flags_more: list[str]  # that the host does not have


class Disk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One disk: size and cache as the guest sees them, the rest as the host and, if there is one, QEMU report it."""

    size: int
    write_cache: str
    format: str | None = None
    cache: dict[str, bool] | None = None
    aio: str | None = None
    device: str
    location: str
    allocated_bytes: int
    prepared_s: float
    from_template: bool
    # How a directory of the host is served, and from where.
    served: str | None = None


class TemplateFacts(msgspec.Struct, kw_only=True):
    """The saved machine from which a guest continued instead of booting."""

    # Distinguishes the template from others of the block.
    template: str
    clone: int  # the first is 1
    # Seconds that making the template took; the first clone waited for it.
    template_s: float = 0.0
    # Whether a device told the guest that it is a copy (VM generation ID).
    generation_id: bool


class Backing(msgspec.Struct, kw_only=True):
    """How this host backs a guest's memory, as the kernel reports it for the hypervisor's process."""

    page_bytes: int
    resident_bytes: int
    thp_allowed: bool
    thp_bytes: int  # in transparent huge pages
    policy: str  # of memory nodes
    # Memory that the guest's balloon leaves it, by the hypervisor's account; None without a balloon.
    left_bytes: int | None = None
    # Whether this host's kernel may merge its pages with equal ones (KSM).
    mergeable: bool = False
    # Bytes in merged pages, if the kernel reports them.
    merged_bytes: int | None = None
    # Whether the guest reports free pages, as negotiated with its balloon device; None if not examined.
    reports_free: bool | None = None


class ImageFirmware(StrEnum):
    """The firmware that boots a disk image."""

    BIOS = "bios"
    UEFI = "uefi"
    # The emulator's own, on architectures with a single one.
    EMULATOR = "emulator"


class ImageEntry(StrEnum):
    """How the agent gets into a disk image."""

    OVERLAY = "an overlay that libguestfs wrote"
    SEED = "a seed of cloud-init"
    GUEST_AGENT = "an overlay that its guest agent wrote, in a boot before"
    SSH = "an overlay that was written over ssh, in a boot before"


class DiskImage(msgspec.Struct, kw_only=True):
    """The disk image that a guest booted from, by its own firmware, boot loader and kernel."""

    path: str
    sha256: str
    format: str
    size: int  # bytes that the guest sees
    firmware: ImageFirmware
    entered: ImageEntry
    # The name that its system gives itself; empty until that runs.
    distribution: str = ""


class GuestMachine(MachineFacts, kw_only=True):
    """A guest: what was asked for, and what hypervisor and guest report.

    `vmm` is what QEMU's monitor reports; None for other hypervisors. `run_by` is the program of one without a monitor.
    """

    asked: dict[str, str]
    vmm: Vmm | None = None
    run_by: RunBy | None = None
    guest: Inside
    disks: dict[str, Disk] | None = None
    restored: TemplateFacts | None = None
    backing: Backing | None = None
    image: DiskImage | None = None


class OuterMachine(GuestMachine, kw_only=True):
    """A guest that contains others."""

    started_for_each: str  # block or trial
    inner_guest: int  # how many guests it has held so far


class RemoteGuestMachine(GuestMachine, kw_only=True):
    """A guest on another machine."""

    on: RemoteMachine


class NestedMachine(MachineFacts, kw_only=True):
    """The outermost guest as this host sees it, and the innermost one as seen from the guest around it."""

    outer: OuterMachine
    inner: GuestMachine


def find_placement(machine: MachineFacts) -> PlacementFacts | None:
    """Return where a machine runs on this host; for nested guests, where the outermost one runs."""
    return machine.outer.placement if isinstance(machine, NestedMachine) else machine.placement


def find_attested_placement(facts: Facts) -> PlacementFacts | None:
    """Return what `find_placement` does, for a trial that has ended."""
    machine = facts.find_fact(NestedMachine) or facts.find_fact(MachineFacts)
    return None if machine is None else find_placement(machine)


# How mountinfo escapes white space and the backslash itself (proc(5)).
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount, as in /proc/PID/mountinfo."""

    number: int
    device: str  # major:minor
    # The directory of the filesystem that forms the root of the mount.
    root: str
    where: str
    kind: str
    source: str
    own: tuple[str, ...]  # options of the mount
    shared: tuple[str, ...]  # options of the filesystem

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the mount and of its filesystem."""
        return (*self.own, *self.shared)


def read_mounts(process: str | int = "self") -> list[Mount]:
    """Return the mounts of a process, the oldest first. Raises `OSError`."""
    return parse_mounts(Path(f"/proc/{process}/mountinfo").read_text(errors="surrogateescape"))


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in the text of mountinfo; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        # Any number of optional fields stands before the separator (proc(5)).
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(more) < 2:
            continue
        number, _, device, root, where, own, *_ = fields
        kind, source, *rest = more
        shared = tuple(_unescape_field(rest[0]).split(",")) if rest else ()
        found.append(
            Mount(
                int(number), device, _unescape_field(root), _unescape_field(where), kind, _unescape_field(source),
                tuple(own.split(",")), shared,
            )
        )  # fmt: skip
    return found


def _unescape_field(escaped: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped)
