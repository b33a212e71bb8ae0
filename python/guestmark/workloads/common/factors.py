"""Factors that several workloads take, and their effect on a cell."""

import re
from typing import Any, Protocol

from guestmark.core.factor import Setting
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_count, format_size, parse_size
from guestmark.setting.base import DiskKind, is_disk_setting


def parse_count(text: str) -> str:
    """Returns a non-negative whole number as text, in its shortest form. Raises `ValueError`."""
    if not re.fullmatch(r"[0-9]{1,12}", text.strip(), re.ASCII):
        raise ValueError(f"{text!r} is not a whole number")
    return str(int(text))


def _parse_threads(text: str) -> str:
    if not 1 <= int(parse_count(text)) <= 1024:
        raise ValueError(f"{text!r} is not between 1 and 1024")
    return parse_count(text)


def _parse_block_size(text: str) -> str:
    size = parse_size(text)
    if not 4096 <= size <= 64 << 20 or size % 4096:
        raise ValueError(f"{text!r} is not a multiple of 4K up to 64M")
    return format_size(size)


THREADS = Setting("threads", "number of threads of the benchmark", _parse_threads, ("1", "2", "4"), read=int)
BLOCK_SIZE = Setting(
    "block_size",
    "bytes that the workload moves at a time, e.g. 4K or 1M",
    _parse_block_size,
    ("64K", "1M"),
    read=parse_size,
)


def warn_of_shared_processors(cell: Cell, threads: int) -> str:
    """Returns a warning if the cell's threads have to share processors; empty if each has its own."""
    processors = cell.processors or cell.platform.count_processors(cell.levels)
    if threads <= processors:
        return ""
    return f"{threads} threads share {format_count(processors, 'processor')}"


class WithDisks(Protocol):
    """Parameters of a workload that describes its disks in the form of `setting.disk`."""

    @property
    def disks(self) -> list[dict[str, Any]]:
        """The disks of a machine, one entry each."""


def decides_disk_factor_on_host(params: WithDisks, factor: str, platform: PlatformSpec) -> bool | None:
    """Decides for `WorkloadKind.decides_factor` whether a disk factor has a meaning on the host.

    Returns None for other platforms and factors.
    """
    looped = any(disk["host"] == "loop" for disk in params.disks[:1])
    if is_disk_setting(factor) and platform.is_this_host and looped:
        return is_disk_setting(factor, DiskKind.LOOP)
    return None


def build_host_target_disk(kind: str) -> list[dict[str, Any]]:
    """Returns a workload's target disk in the form of `setting.disk`; on the host it is a directory or an image."""
    return [{"role": "target", "host": kind}]
