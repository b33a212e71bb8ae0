"""The workload `netboot`: iPXE in a diskless machine fetches files from a server; packets show which side was slow.

The start is measured once, the files in every round; all times except `wall_s` come from captures.
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
from guestmark.setting.network import NETBOOT_FACTORS
from guestmark.workloads.base import Sections, Workload

# First to last packet of a file's connection; mean over the files.
DOWNLOAD = Metric("download_s", "s")
THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)  # bytes of the files a second, over the same time
# All files together by the host's clock, timed by iPXE's requests.
WALL = Metric("wall_s", "s")
# Share of the connections' time for which the client was due to respond.
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

    def list_all_metrics(self) -> tuple[Metric, ...]:
        """Returns the metrics in table order."""
        return (self.mean, self.p50, self.p99, self.max)


def _make_responses(role: str) -> Responses:
    return Responses(*(Metric(f"{role}_{what}_s", "s") for what in ("mean", "p50", "p99", "max")))


RESPONSES = {"client": _make_responses("client"), "server": _make_responses("server")}
CLIENT, SERVER = RESPONSES["client"], RESPONSES["server"]
# The phases of a start, in order; they add up to the time from QEMU's start until iPXE asks what to do.
ROM = Metric("rom_s", "s")  # QEMU started → the ROM's driver takes the card
# Driver loaded → the card's first packet, which waits until the link is up.
LINK = Metric("link_s", "s")
DHCP = Metric("dhcp_s", "s")  # first packet → the address is acknowledged
# Address acknowledged → iPXE has its script, and asks what to do.
SCRIPT = Metric("script_s", "s")
START = (ROM, LINK, DHCP, SCRIPT)
# Only with params.kernel, at the end of a boot.
KERNEL = Metric("kernel_s", "s")  # kernel and initramfs are fetched
# Kernel and initramfs fetched → the kernel's agent answers.
HANDOVER = Metric("handover_s", "s")
_SMALLEST = 4096  # bytes of a file
# Largest file in bytes; iPXE under BIOS keeps files below 4 GB, where the hypervisor has its hole.
_LARGEST = 1 << 30
_MOST_FILES = 9  # files whose times are separate metrics

ALL = (
    DOWNLOAD, THROUGHPUT, CLIENT.mean, SERVER.mean, CLIENT_SHARE, SERVER_SHARE,
    CLIENT.p50, CLIENT.p99, CLIENT.max, SERVER.p50, SERVER.p99, SERVER.max,
    HANDSHAKE, RETRANSMITTED, ZERO_WINDOWS, WALL, *START,
)  # fmt: skip


def _check_certificate(certificate: str | None) -> str | None:
    if certificate is None:
        return None
    # Costly to import, and needed for https only.
    import ssl

    path = os.path.abspath(os.path.expanduser(certificate))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except OSError as error:  # includes errors of SSL
        raise ValueError(
            f"{certificate} is not a PEM file with a certificate and its key: {error.strerror}"
        ) from error
    return path


def _check_size(size: str) -> str:
    number = parse_size(size)
    if not _SMALLEST <= number <= _LARGEST:
        raise ValueError(f"{size!r} is not between 4K and 1G, the sizes that iPXE supports")
    return format_size(number)


class NetbootParams(Params, frozen=True, kw_only=True):
    """`port` is the file server's port on the host; 0 selects any free one, so that runs do not interfere.

    `kernel` ends each boot in a kernel, fetched like the files, whose agent answers; a trial is then one round.
    `certificate` is for protocol=https: a PEM file that also holds the key.
    """

    size: Annotated[str, param("size of each file", "size", parse=_check_size, default="100M")]
    files: Annotated[int, param("files fetched in a round", default=5, ge=1, le=1000)]
    port: Annotated[int, param("port of the file server; 0 = any free one", ge=0, le=65535)] = 0
    certificate: Annotated[
        str | None, param("certificate and key for `protocol=https` (PEM)", "path", parse=_check_certificate)
    ] = None
    kernel: Annotated[bool, param("end each boot with a kernel that runs the agent")] = False


def list_round_metrics(params: NetbootParams) -> tuple[Metric, ...]:
    """Returns the metrics for these parameters, in table order."""
    return (*ALL, *((KERNEL, HANDOVER) if params.kernel else ()), *list_file_metrics(params.files))


def list_file_metrics(files: int) -> tuple[Metric, ...]:
    """Returns a metric for each file of a round; none for many files, or for one, whose time is `download_s`."""
    if not 1 < files <= _MOST_FILES:
        return ()
    return tuple(Metric(f"file_{number}_s", "s") for number in range(1, files + 1))


class Card(msgspec.Struct, kw_only=True):
    """The network card as QEMU describes it."""

    type: str
    romfile: str | None
    mac: str


class BootingMachine(MachineFacts, kw_only=True):
    """Facts about a machine that runs only firmware and iPXE, as requested and as QEMU and iPXE report them."""

    asked: dict[str, str]
    vmm: Vmm
    nic: Card
    ipxe: dict[str, str]
    rom: str
    rom_sha256: str
    firmware: str


class Netboot(Fact, kw_only=True):
    """The files, their server, and the packets of the last round; if nested, all findings from inside."""

    # Rate of the HTTP server when measured alone.
    server_bytes_per_s: float | None = None
    file_sha256: str | None = None
    files: int | None = None
    file_bytes: int | None = None
    fetched_to: str | None = None  # the address in the guest's memory
    # The release of the kernel that was booted at the end.
    kernel: str | None = msgspec.field(name="booted_kernel", default=None)
    lease: Lease | None = None  # the exchange in which the guest got its address
    picture: Trace | None = msgspec.field(name="capture_picture", default=None)
    inner: InnerBoot | None = None


class LeaseStep(msgspec.Struct):
    """One DHCP message, in seconds after the first."""

    at_s: float
    kind: str
    client: bool


class Lease(msgspec.Struct):
    """The course of a lease: seconds that client and server took, seconds until repetitions, and the messages."""

    duration_s: float
    client_s: float
    server_s: float
    recovery_s: float
    steps: list[LeaseStep]


class InnerBoot(msgspec.Struct, kw_only=True):
    """A network boot in an outer guest: the machine that was started there, and its findings."""

    attestation: BootingMachine
    phases: dict[str, float]
    facts: Netboot
    command_line: list[str]


class NetbootWorkload(Workload[NetbootParams]):
    """Downloads files with iPXE, in rounds."""

    name = "netboot"
    help = (
        "lets iPXE fetch files over the network in a diskless machine; the packets show which side was slow"
    )
    factors = NETBOOT_FACTORS

    @classmethod
    def list_metrics(cls, params: NetbootParams) -> tuple[Metric, ...]:
        """Returns the metrics of a round and of the start."""
        return list_round_metrics(params)

    @classmethod
    def describe_params(cls, params: NetbootParams) -> str:
        """Returns the number of files and their size."""
        return f"{params.files} × {params.size} by iPXE"

    @classmethod
    def takes_factor(cls, factor: str, platform: PlatformSpec) -> bool:
        """Returns whether it takes the factor: machine factors, and its own on platforms that boot firmware."""
        own = any(factor == known.name for known in NETBOOT_FACTORS)
        return factor in _MACHINE or (own and platform.inner.description.boots_firmware)

    @classmethod
    def trial_class(cls) -> type[Workload[NetbootParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.netboot.trial import NetbootTrial

        return NetbootTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the phases of the start, which side was slow, and how rounds differ."""
        from guestmark.workloads.netboot.sections import (
            render_latencies,
            render_phases,
            render_rounds,
            render_shares,
        )

        return (render_phases, render_shares, render_latencies, render_rounds)
