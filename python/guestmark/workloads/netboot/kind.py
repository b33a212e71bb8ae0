"""The workload `netboot` in plans: how many files of which size iPXE fetches; the machine is made of factors."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from guestmark.core.units import format_size, parse_size
from guestmark.core.workload_kind import WorkloadKind, register, takes_only
from guestmark.plan.schema import Strict
from guestmark.workloads.netboot import factors, metrics

_MACHINE = ("memory", "smp", "cpu", "machine")
_LARGEST = 1 << 30  # bytes; iPXE under BIOS keeps a file below 4 GB, and the hypervisor's hole is there


class NetbootParams(Strict):
    """`port` is the HTTP server's on the host; 0 takes any free one, which keeps runs apart."""

    size: str = "100M"
    files: Annotated[int, Field(ge=1, le=1000)] = 5
    port: Annotated[int, Field(ge=0, le=65535)] = 0

    @field_validator("size")
    @classmethod
    def _is_a_size(cls, size: str) -> str:
        number = parse_size(size)
        if not 4096 <= number <= _LARGEST:
            raise ValueError(f"{size!r} is not between 4K and 1G, which is what iPXE can keep")
        return format_size(number)


def _label(params: Mapping[str, Any]) -> str:
    return f"{params['files']} × {params['size']} over HTTP by iPXE"


NETBOOT = register(
    WorkloadKind(
        "netboot",
        "iPXE in a machine without disk fetches files over HTTP; the packets say who was slow",
        lambda: NetbootParams,
        lambda _params: metrics.ALL,
        _label,
        takes_only(*factors.NAMES, *_MACHINE),
    )
)
