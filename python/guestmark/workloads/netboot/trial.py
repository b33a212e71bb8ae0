"""The trial of `netboot`: iPXE fetches files over HTTP, and the packets show which side was slow."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from guestmark.capture.binary import analyse_file, find_capture_binary
from guestmark.capture.model import reduce_for_drawing
from guestmark.core.errors import WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan
from guestmark.core.units import parse_size
from guestmark.platforms.base import BareMachine, Platform
from guestmark.platforms.guest import Guest
from guestmark.platforms.place import open_plain_file
from guestmark.workloads import netboot
from guestmark.workloads.netboot import Netboot, NetbootWorkload, control, figures, nested, network
from guestmark.workloads.netboot.content import Content, make_content, measure_rate, run_server
from guestmark.workloads.netboot.control import NOTHING, Request
from guestmark.workloads.netboot.kernel import BootedKernel, wait_for_answer
from guestmark.workloads.netboot.machine import NetbootError, NetbootMachine, start_machine
from guestmark.workloads.netboot.network import get_bound_port, open_listener
from guestmark.workloads.netboot.settings import Settings

# Environment variable with a directory in which every trial's capture is kept.
KEEP = "GUESTMARK_KEEP_CAPTURES"
_BOOT_LIMIT_S = {"bios": 90.0, "uefi": 240.0}
# Bytes that a capture needs in addition to its files.
_SLACK_BYTES = 4 << 20
# Factor for headers, acknowledgements and retransmissions.
_OVERHEAD = 1.5
_EXPECTED = {"offload", "near_client", "near_server"}  # limits that every capture at the guest's card has
_NOT_SUPPORTED = "3c"  # ENOTSUP in the leading digits of iPXE's error numbers
# Time for a connection to close before memory is read, as reading stops the guest.
_CLOSING_S = 0.05
# The server alone must be faster than the measured throughput by this factor.
_FAST_ENOUGH = 2.0


class NetbootTrial(NetbootWorkload):
    """Boots a fresh machine, then runs rounds of downloads."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        # Facts are added at once and completed later, so that a failed trial keeps what it found.
        self.found = self.facts.add(Netboot())
        self._nested = cell.platform.is_nested
        self._size = parse_size(self.params.size)
        self._files = self.params.files
        self._port = self.params.port
        # A guest that repeats its packets endlessly would otherwise fill the host's disk.
        self._capture_limit = int(self._size * self._files * _OVERHEAD) + _SLACK_BYTES
        self._kernel: BootedKernel | None = None
        # A running kernel fetches no more files.
        self.ONCE = self.params.kernel
        self._next = 1
        self._content: Content | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._rate = 0.0

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Checks ROMs, firmware, the port, and room for captures: everything that would fail every trial."""
        # A checkout builds the analyser on first use, which must not happen between two trials.
        find_capture_binary()
        for cell in cells:
            workload = cls(plan, cell)
            settings = Settings.read_settings(cell, workload._size)
            # Only listening shows whether the user's port is free.
            if workload._port:
                open_listener("127.0.0.1", workload._port, settings.serving.socket_kind).close()
        return ()

    @contextlib.contextmanager
    def machine(self, platform: Platform) -> Iterator[BareMachine]:
        """Starts this workload's own machine in place of the platform's."""
        settings = Settings.read_settings(self.cell, self._size)
        if self._nested:
            with nested.start_outer_guest(
                platform, self.cell, settings.memory, self._size * self._files
            ) as guest:
                yield guest
            return
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(
                network.open_link(settings.network, self._port, settings.serving, settings.ip)
            )
            if self.ONCE:
                self._kernel = BootedKernel.find_kernel(settings.machine)
                self._capture_limit += int(_OVERHEAD * self._kernel.size)
            # Each machine gets new content, so that no file of an earlier one can be mistaken for it in a guest's
            # memory.
            self._content = make_content(self._size)
            stack.callback(self._content.close)
            self._server = stack.enter_context(
                run_server(
                    link.data, self._content, settings.serving, self._kernel.files if self._kernel else {}
                )
            )
            link.helpers[settings.serving.server_name] = self._server.pid
            yield stack.enter_context(
                start_machine(self.cell, settings, link, _BOOT_LIMIT_S[settings.firmware], self._kernel)
            )

    def prepare(self, machine: BareMachine) -> None:
        """Measures the server's rate alone, to make sure that it is not the limit."""
        if self._nested:
            return
        mine = _require_netboot_machine(machine)
        assert self._content is not None
        found, serving = self.found, mine.settings.serving
        # Over TFTP every block waits for the client, so the server alone has no rate.
        if serving.socket_kind is socket.SOCK_STREAM:
            self._rate = found.server_bytes_per_s = measure_rate(mine.link.connect(), self._content, serving)
        found.file_sha256 = self._content.sha256
        found.files, found.file_bytes = self._files, self._size
        found.lease = mine.lease
        self._keep_capture(mine.boot_capture)
        self._require_space_for_capture(mine.scratch)

    def run(self, machine: BareMachine) -> list[Measurement]:
        """Fetches all files once, one after the other; if nested, after a boot for each round."""
        if self._nested:
            inside = nested.run_inside(cast("Guest", machine), self.cell, self.limit_s)
            self.warnings += inside.warnings
            self.found.inner = inside.boot
            return inside.measurements
        mine = _require_netboot_machine(machine)
        # File numbers continue over the rounds, so that remains of an earlier round in memory differ.
        numbers = range(self._next, self._next + self._files)
        self._next += self._files
        capture = mine.scratch / f"round{numbers.start}.pcap"
        try:
            with mine.capture(capture):
                wall_s = self._download_files(mine, numbers, capture)
            measurements = self._analyse_capture(mine, capture, wall_s)
            if self._kernel:
                measurements += self._boot_kernel(mine)
            return measurements
        finally:
            self._keep_capture(capture)
            capture.unlink(missing_ok=True)

    def _boot_kernel(self, machine: NetbootMachine) -> list[Measurement]:
        """Lets iPXE fetch and boot the kernel; times both, the boot until the agent's answer."""
        kernel = self._kernel
        assert kernel is not None
        link, capture = machine.link, machine.scratch / "kernel.pcap"
        ends = time.monotonic() + self.limit_s
        begin = time.monotonic()
        with machine.capture(capture):
            machine.waiting.answer(
                control.build_handover_script(link.control_url, link.data_url, kernel.arguments)
            )
            request = self._wait_for_request(machine, "booting", ends, capture)
            fetched_s = time.monotonic() - begin
        self._keep_capture(capture)
        request.answer(NOTHING)
        answered_s = wait_for_answer(machine.process, kernel, ends - time.monotonic())
        self.found.kernel = kernel.release
        return [
            Measurement(netboot.KERNEL, fetched_s, (fetched_s,)),
            Measurement(netboot.HANDOVER, answered_s, (answered_s,)),
        ]

    def _download_files(self, machine: NetbootMachine, numbers: range, capture: Path) -> float:
        """Returns the seconds from each answer to iPXE's next request, summed over the files."""
        assert self._content is not None
        link, wall_s = machine.link, 0.0
        ends = time.monotonic() + self.limit_s
        script = control.build_fetch_script(link.control_url, link.data_url, numbers)
        begin = time.monotonic()
        machine.waiting.answer(script)
        for number in numbers:
            request = self._wait_for_request(machine, "fetched", ends, capture)
            # Only the download is timed, not the search in memory, during which the guest is stopped.
            wall_s += time.monotonic() - begin
            if request.values.get("number") != str(number):
                raise WorkloadError(f"iPXE reports that it has fetched {request.values}, not file {number}")
            time.sleep(_CLOSING_S)
            at = find_fetched_file(machine, self._content, number)
            self.found.fetched_to = f"{at:#x}"
            begin = time.monotonic()
            request.answer(NOTHING)
        machine.waiting = self._wait_for_request(machine, "done", ends, capture)
        return wall_s

    def _wait_for_request(self, machine: NetbootMachine, kind: str, ends: float, capture: Path) -> Request:
        request = machine.control.next(
            lambda: self._check_progress(machine, capture), lambda: ends - time.monotonic()
        )
        if request is None:
            raise NetbootError(f"the downloads took longer than {self.limit_s:.0f} s", machine)
        if request.kind == kind:
            return request
        self._check_progress(machine, capture)
        # iPXE's error numbers begin with the errno, and each has a page on its web site.
        if request.kind == "failed":
            code = request.values.get("errno", "?")
            if code[2:4] == _NOT_SUPPORTED:
                protocol = machine.settings.serving.protocol
                raise NetbootError(
                    f"this build of iPXE cannot fetch files over {protocol.upper()} (error {code})",
                    machine,
                    hint="use another protocol, or a ROM built with support for it: rom=FILE",
                )
            raise NetbootError(
                f"iPXE could not fetch a file: error {code}", machine, hint=f"https://ipxe.org/{code[2:]}"
            )
        raise NetbootError(f"iPXE asked for {request.kind!r} instead of {kind!r}", machine)

    def _check_progress(self, machine: NetbootMachine, capture: Path) -> None:
        machine.check_running()
        assert self._server is not None
        if (status := self._server.poll()) is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            raise WorkloadError(f"{machine.settings.serving.server_name} {how} while files were fetched")
        with contextlib.suppress(FileNotFoundError):
            if capture.stat().st_size > self._capture_limit:
                raise NetbootError(
                    f"the capture exceeds its limit of {self._capture_limit / 1e6:.0f} MB for "
                    f"{self._files * self._size / 1e6:.0f} MB of files",
                    machine,
                    hint="packets are probably repeated endlessly; see the console",
                )

    def _analyse_capture(self, machine: NetbootMachine, capture: Path, wall_s: float) -> list[Measurement]:
        try:
            open_plain_file(capture).close()
        except OSError as error:
            raise WorkloadError(f"QEMU's capture cannot be read: {error.strerror}") from error
        trace = analyse_file(capture, filter_by=str(get_bound_port(machine.link.data)), sequence=True)
        self.found.picture = reduce_for_drawing(trace)
        protocol = machine.settings.serving.protocol
        fetches = figures.find_fetches(trace, self._files, self._size, protocol)
        measurements = figures.measure_round(trace, fetches, self._size, wall_s)
        fastest = max(fetch.unique_bytes / fetch.duration_s for fetch in fetches if fetch.duration_s)
        if 0 < self._rate < _FAST_ENOUGH * fastest:
            self.warnings.append(
                f"the HTTP server alone reaches {self._rate / 1e6:.0f} MB/s, little more than the "
                f"{fastest / 1e6:.0f} MB/s measured, so it may be the bottleneck"
            )
        for limit in trace.limits:
            if limit.kind not in _EXPECTED:
                self.warnings.append(f"capture: {limit.count} {limit.text}")
        return [*measurements, *figures.measure_start(machine.phases)]

    def _require_space_for_capture(self, directory: Path) -> None:
        free = shutil.disk_usage(directory).free
        if free < self._capture_limit:
            raise WorkloadError(
                f"{directory.parent} has {free / 1e6:.0f} MB free, but a capture may need "
                f"{self._capture_limit / 1e6:.0f} MB",
                hint="use --scale, or set TMPDIR to a directory with more room",
            )

    def _keep_capture(self, capture: Path) -> None:
        if directory := os.environ.get(KEEP):
            name = "".join(c if c.isalnum() or c in "=.-" else "_" for c in self.cell.id)
            with contextlib.suppress(OSError):
                kept = Path(directory, f"{name}-{capture.stem}-{time.time_ns()}.pcap")
                with open_plain_file(capture) as packets, kept.open("wb") as file:
                    shutil.copyfileobj(packets, file)


def _require_netboot_machine(machine: BareMachine) -> NetbootMachine:
    if not isinstance(machine, NetbootMachine):
        raise WorkloadError("netboot was given a machine of another workload")
    return machine


# The number of random bytes at the start of a file that are searched for in memory.
_MARK = 64
_DUMP_DEADLINE_S = 120.0
_PIECE = 1 << 20


def find_fetched_file(machine: NetbootMachine, content: Content, number: int) -> int:
    """Returns the guest-physical address of file `number`.

    Raises `WorkloadError` if it is not contiguous anywhere; iPXE keeps fetched files contiguous under both BIOS and
    UEFI.
    """
    file = machine.scratch / "memory.bin"
    if machine.fetched_to is not None and _is_at(machine, content, number, machine.fetched_to, file):
        # The address of the last file usually saves a search.
        return machine.fetched_to
    try:
        # Files fit below the hole under 4 GB, as iPXE has 32-bit addresses under BIOS.
        _dump_memory(machine, file, 0, min(machine.settings.memory, 2 << 30))
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as memory:
            address = _find_file_in_memory(memory, content, number)
    finally:
        file.unlink(missing_ok=True)
    if address is None:
        raise WorkloadError(
            f"file {number} is not in the guest's memory as it was served ({len(content)} bytes)",
            hint="iPXE, the card or the network changed or lost bytes; the capture may show where",
        )
    machine.fetched_to = address
    return address


def _dump_memory(machine: NetbootMachine, file: Path, begin: int, size: int) -> None:
    machine.monitor.execute(
        "pmemsave", {"val": begin, "size": size, "filename": str(file)}, timeout_s=_DUMP_DEADLINE_S
    )


def _is_at(machine: NetbootMachine, content: Content, number: int, address: int, file: Path) -> bool:
    """Returns whether all bytes of the file are at that guest-physical address."""
    first, second = content.split_file(number)
    try:
        _dump_memory(machine, file, address, len(content))
        with (
            file.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as memory,
            memoryview(memory) as there,
            memoryview(content.view) as whole,
        ):
            middle = first.stop - first.start
            return _has_equal_bytes(there[:middle], whole[first]) and _has_equal_bytes(
                there[middle:], whole[second]
            )
    finally:
        file.unlink(missing_ok=True)


def _has_equal_bytes(one: memoryview, other: memoryview) -> bool:
    """Returns whether two views are equal. Compares copied pieces, as Python compares views element by element."""
    with one, other:
        return len(one) == len(other) and all(
            bytes(one[at : at + _PIECE]) == bytes(other[at : at + _PIECE])
            for at in range(0, len(one), _PIECE)
        )


def _find_file_in_memory(memory: mmap.mmap, content: Content, number: int) -> int | None:
    first, second = content.split_file(number)
    with memoryview(content.view) as whole, memoryview(memory) as there:
        begin, rest = whole[first], whole[second]
        mark = bytes(begin[:_MARK])
        if len(mark) < _MARK:
            mark += bytes(rest[: _MARK - len(mark)])
        middle, end = len(begin), len(begin) + len(rest)
        try:
            at = memory.find(mark)
            while at >= 0:
                # Remains of another file contain this one's mark, too, but never all bytes that follow it.
                if _has_equal_bytes(there[at : at + middle], begin[:]) and _has_equal_bytes(
                    there[at + middle : at + end], rest[:]
                ):
                    return at
                at = memory.find(mark, at + 1)
        finally:
            begin.release()
            rest.release()
    return None
