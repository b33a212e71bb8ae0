"""iPXE in a machine without disk fetches files from a server; the packets say who was slow."""

from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.workload_kind import WorkloadKind
from guestmark.setting.network import FACTORS
from guestmark.workloads.netboot import metrics

_MACHINE = frozenset({"memory", "smp", "cpu", "machine", "placement"})


def _takes(factor: str, platform: PlatformSpec) -> bool:
    return factor in _MACHINE or (
        any(factor == own.name for own in FACTORS) and platform.inner.described.boots_firmware
    )


WORKLOADS = (
    WorkloadKind(
        "netboot",
        "has iPXE fetch files over the network in a machine without a disk; the packets show who was slow",
        params="guestmark.workloads.netboot.params:NetbootParams",
        run="guestmark.workloads.netboot.workload:NetbootWorkload",
        metrics=metrics.of,
        label=lambda params: f"{params.files} × {params.size} by iPXE",
        reads=metrics.Fetched,
        factors=FACTORS,
        sections=(
            "guestmark.workloads.netboot.sections:phases",
            "guestmark.workloads.netboot.sections:shares",
            "guestmark.workloads.netboot.sections:latencies",
            "guestmark.workloads.netboot.sections:rounds",
        ),
        takes=_takes,
    ),
)
