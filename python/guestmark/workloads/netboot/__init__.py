"""iPXE in a machine without disk fetches files from a server; the packets show who was slow.

Its start is measured once, its files in every round; all times but `wall_s` are from captures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import msgspec

from guestmark.capture.model import Trace
from guestmark.core.findings import Fact
from guestmark.core.machine_facts import MachineFacts, Vmm
from guestmark.core.metric import Better, Metric
from guestmark.core.params import Params, param
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_size, parse_size
from guestmark.setting.network import FACTORS
from guestmark.workloads.base import Sections, Workload

# First to last packet of a file's connection; mean over the files.
DOWNLOAD = Metric("download_s", "s")
THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)  # bytes of the files, in the same time
# All files together by the host's clock, from iPXE's own messages.
WALL = Metric("wall_s", "s")
# Share of the connections' time that the client took to respond.
CLIENT_SHARE = Metric("client_share", "")
SERVER_SHARE = Metric("server_share", "")
HANDSHAKE = Metric("handshake_s", "s")
RETRANSMITTED = Metric("retransmitted_bytes", "B")
ZERO_WINDOWS = Metric("zero_windows", "")
_MACHINE = frozenset({"memory", "smp", "cpu", "machine", "placement"})


@dataclass(frozen=True, slots=True)
class Responses:
    """The response latency of one endpoint."""

    mean: Metric
    p50: Metric
    p99: Metric
    max: Metric

    def all_metrics(self) -> tuple[Metric, ...]:
        """Returns the metrics in table order."""
        return (self.mean, self.p50, self.p99, self.max)


def _make_responses(role: str) -> Responses:
    return Responses(*(Metric(f"{role}_{what}_s", "s") for what in ("mean", "p50", "p99", "max")))


RESPONSES = {"client": _make_responses("client"), "server": _make_responses("server")}
CLIENT, SERVER = RESPONSES["client"], RESPONSES["server"]
# The phases of a start, in order; they add up to the time from QEMU's start to the question what to do.
ROM = Metric("rom_s", "s")  # → the ROM's driver takes the card
# Driver loaded → the card's first packet, which waits until the link is up.
LINK = Metric("link_s", "s")
DHCP = Metric("dhcp_s", "s")  # → the address is acknowledged
# Address acknowledged → iPXE has its script, and asks what to do.
SCRIPT = Metric("script_s", "s")
START = (ROM, LINK, DHCP, SCRIPT)
# With params.kernel, at the end of a boot.
KERNEL = Metric("kernel_s", "s")  # kernel and initramfs are fetched
# iPXE has kernel and initramfs → the kernel's agent answers.
HANDOVER = Metric("handover_s", "s")
_SMALLEST = 4096  # bytes of a file
# Bytes of a file; iPXE under BIOS keeps a file below 4 GB, and the hypervisor's hole is there.
_LARGEST = 1 << 30
_MOST_FILES = 9  # whose times are metrics of their own

ALL = (
    DOWNLOAD, THROUGHPUT, CLIENT.mean, SERVER.mean, CLIENT_SHARE, SERVER_SHARE,
    CLIENT.p50, CLIENT.p99, CLIENT.max, SERVER.p50, SERVER.p99, SERVER.max,
    HANDSHAKE, RETRANSMITTED, ZERO_WINDOWS, WALL, *START,
)  # fmt: skip


def _check_certificate(certificate: str | None) -> str | None:
    if certificate is None:
        return None
    # Costly, and only for who fetches by https.
    import ssl

    path = os.path.abspath(os.path.expanduser(certificate))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except OSError as error:  # of SSL's, too
        raise ValueError(
            f"{certificate} is not a PEM file with certificate and key: {error.strerror}"
        ) from error
    return path


def _check_size(size: str) -> str:
    number = parse_size(size)
    if not _SMALLEST <= number <= _LARGEST:
        raise ValueError(f"{size!r} is not between 4K and 1G, the sizes that iPXE can hold")
    return format_size(number)


class NetbootParams(Params, frozen=True, kw_only=True):
    """`port` is the file server's on the host; 0 takes any free one, which keeps runs apart.

    `kernel` ends each boot in a kernel, fetched like the files, whose agent answers; then a trial is one round.
    `certificate` is for protocol=https: a PEM file that also holds the key.
    """

    size: Annotated[str, param("size of each file", "size", parse=_check_size, default="100M")]
    files: Annotated[int, param("files fetched in a round", default=5, ge=1, le=1000)]
    port: Annotated[int, param("port of the file server; 0 = any free one", ge=0, le=65535)] = 0
    certificate: Annotated[
        str | None, param("certificate and key for `protocol=https` (PEM)", "path", parse=_check_certificate)
    ] = None
    kernel: Annotated[bool, param("end each boot in a kernel whose agent answers")] = False


def metrics_of_rounds(params: NetbootParams) -> tuple[Metric, ...]:
    """Returns the metrics for these parameters, in table order."""
    return (*ALL, *((KERNEL, HANDOVER) if params.kernel else ()), *file_metrics(params.files))


def file_metrics(files: int) -> tuple[Metric, ...]:
    """Returns a metric for each file of a round; none for a single file, whose time is `download_s`, or for many."""
    if not 1 < files <= _MOST_FILES:
        return ()
    return tuple(Metric(f"file_{number}_s", "s") for number in range(1, files + 1))


class Card(msgspec.Struct, kw_only=True):
    """The network card as QEMU describes it."""

    type: str
    romfile: str | None
    mac: str


class BootingMachine(MachineFacts, kw_only=True):
    """A machine that runs only firmware and iPXE: what was asked for, and what QEMU and iPXE report."""

    asked: dict[str, str]
    vmm: Vmm
    nic: Card
    ipxe: dict[str, str]
    rom: str
    rom_sha256: str
    firmware: str


class Netboot(Fact, kw_only=True):
    """The files, their source, and the packets of the last round; nested, everything that was found inside."""

    # Rate of the HTTP server, measured alone.
    server_bytes_per_s: float | None = None
    file_sha256: str | None = None
    files: int | None = None
    file_bytes: int | None = None
    fetched_to: str | None = None  # the address in the guest's memory
    # The release of the kernel that was booted in the end.
    kernel: str | None = msgspec.field(name="booted_kernel", default=None)
    lease: Lease | None = None  # how the guest got its address
    picture: Trace | None = msgspec.field(name="capture_picture", default=None)
    inner: InnerBoot | None = None


class LeaseStep(msgspec.Struct):
    """One message of DHCP, in seconds after the first."""

    at_s: float
    kind: str
    client: bool


class Lease(msgspec.Struct):
    """The course of a lease: how long client and server took, how long repetitions waited, and the messages."""

    duration_s: float
    client_s: float
    server_s: float
    recovery_s: float
    steps: list[LeaseStep]


class InnerBoot(msgspec.Struct, kw_only=True):
    """A network boot in an outer guest: the machine that was started there, and the findings."""

    attestation: BootingMachine
    phases: dict[str, float]
    facts: Netboot
    command_line: list[str]


class NetbootWorkload(Workload[NetbootParams]):
    """Rounds of downloads by iPXE."""

    name = "netboot"
    help = "has iPXE fetch files over the network in a machine without a disk; the packets show who was slow"
    factors = FACTORS

    @classmethod
    def list_metrics(cls, params: NetbootParams) -> tuple[Metric, ...]:
        """Returns the metrics of a round, and of the start."""
        return metrics_of_rounds(params)

    @classmethod
    def describe_params(cls, params: NetbootParams) -> str:
        """Says how many files of which size are fetched."""
        return f"{params.files} × {params.size} by iPXE"

    @classmethod
    def takes_factor(cls, factor: str, platform: PlatformSpec) -> bool:
        """Takes its own factors where there is firmware to boot."""
        own = any(factor == known.name for known in FACTORS)
        return factor in _MACHINE or (own and platform.inner.description.boots_firmware)

    @classmethod
    def trial_class(cls) -> type[Workload[NetbootParams]]:
        """Returns the class of its trials, whose imports cost time."""
        from guestmark.workloads.netboot.trial import NetbootTrial

        return NetbootTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the start, who was slow, and how the rounds differ."""
        from guestmark.workloads.netboot.sections import (
            render_latencies,
            render_phases,
            render_rounds,
            render_shares,
        )

        return (render_phases, render_shares, render_latencies, render_rounds)
