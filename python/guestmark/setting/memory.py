"""The factors for how this host backs a guest's memory: page size, NUMA node, preallocation, sharing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from guestmark.core.errors import PlatformUnusableError
from guestmark.core.factor import Machine, one_of
from guestmark.core.levels import Levels
from guestmark.core.units import format_count, format_size, parse_size
from guestmark.setting.base import Check, format_switch, pass_words_at
from guestmark.setting.machine import (
    MEMORY,
    START,
    MachineSetting,
    Start,
    StartedGuest,
    collect_guest_options,
    iterate_guest_levels,
)

_KERNEL = Path("/sys/kernel/mm")
_NODES = Path("/sys/devices/system/node")


class HugePages(StrEnum):
    """Sizes of huge pages that the host reserves for programs that request them explicitly (hugetlbfs)."""

    OFF = "off"
    MEDIUM = "2M"
    LARGE = "1G"

    @property
    def bytes(self) -> int:
        """The size of one page; 0 for `off`."""
        return 0 if self is HugePages.OFF else parse_size(self)

    @property
    def folder(self) -> Path:
        """The sysfs directory of this size of pages on this host."""
        return _KERNEL / f"hugepages/hugepages-{self.bytes >> 10}kB"

    def count_free(self) -> int | None:
        """Return the number of free pages on this host; None if it has none of this size."""
        try:
            return int((self.folder / "free_hugepages").read_text())
        except (OSError, ValueError):
            return None

    def count_needed(self, size: int) -> int:
        """Return the number of pages that hold `size` bytes."""
        return -(-size // self.bytes)


class Switch(StrEnum):
    """The levels of a factor that is on or off."""

    OFF = "off"
    ON = "on"


def _attest_hugepages(level: HugePages, guest: StartedGuest) -> Iterator[Check]:
    if guest.backing is not None:
        huge = guest.backing.page_bytes
        # Without huge pages the kernel reports its base page size, which is 64 kB on some architectures.
        if huge <= 1 << 16:
            huge = 0
        yield Check("the size of huge pages of the guest's memory", level.bytes, huge)


def _parse_hugepages(text: str) -> str:
    # Levels are spelled `2M` and `1G`, but `one_of` compares in lower case.
    spellings = {pages.lower(): str(pages) for pages in HugePages}
    return spellings[one_of(*spellings)(text)]


def _list_hugepage_options(level: HugePages) -> Sequence[str]:
    if level is HugePages.OFF:
        return ()
    return "hugetlb=on", f"hugetlbsize={level}"


HUGEPAGES = MachineSetting(
    "hugepages",
    "size of the huge pages, reserved on this host, that back the guest's memory",
    _parse_hugepages,
    tuple(HugePages),
    read=HugePages,
    default=HugePages.OFF,
    machines=Machine.QEMU,
    backing=_list_hugepage_options,
    attest=_attest_hugepages,
)


def _attest_thp(level: Switch, guest: StartedGuest) -> Iterator[Check]:
    if guest.backing is not None:
        yield Check(
            "whether transparent huge pages are allowed", level is Switch.ON, guest.backing.thp_allowed
        )
        if level is Switch.OFF:
            yield Check("bytes of the guest's memory in transparent huge pages", 0, guest.backing.thp_bytes)


THP = MachineSetting(
    "thp",
    "transparent huge pages for the guest's memory: as this host's kernel provides them, or none",
    one_of(*Switch),
    tuple(Switch),
    read=Switch,
    default=Switch.ON,
    machines=Machine.QEMU,
    process=pass_words_at(Switch.OFF, "--no-thp"),
    attest=_attest_thp,
)


def _attest_prealloc(level: Switch, guest: StartedGuest) -> Iterator[Check]:
    # Only preallocated memory is resident before the guest has touched it.
    if guest.backing is not None and guest.vmm is not None:
        is_resident = guest.backing.resident_bytes >= guest.vmm.memory_bytes
        yield Check(
            "whether all of the guest's memory is resident from the start", level is Switch.ON, is_resident
        )


PREALLOC = MachineSetting(
    "prealloc",
    "whether this host allocates the guest's memory before the guest starts",
    one_of(*Switch),
    tuple(Switch),
    read=Switch,
    default=Switch.OFF,
    machines=Machine.QEMU,
    backing=pass_words_at(Switch.ON, "prealloc=on"),
    attest=_attest_prealloc,
)


def _parse_node(text: str) -> str:
    if not re.fullmatch(r"\s*[0-9]{1,3}\s*", text, re.ASCII):
        raise ValueError(f"{text!r} is not the number of a NUMA node")
    return str(int(text))


def _attest_node(level: int, guest: StartedGuest) -> Iterator[Check]:
    if guest.backing is not None:
        yield Check("the NUMA policy of the guest's memory", f"bind:{level}", guest.backing.policy)


NUMA = MachineSetting(
    "numa",
    "the host's NUMA node to which the guest's memory is bound",
    _parse_node,
    ("0", "1"),
    read=int,
    machines=Machine.QEMU,
    backing=lambda node: (f"host-nodes={node}", "policy=bind"),
    attest=_attest_node,
)


def _parse_balloon(text: str) -> str:
    size = parse_size(text)
    if size < 64 << 20 or size % (1 << 20):
        raise ValueError(f"{text!r} is not a whole number of MiB, at least 64")
    return format_size(size)


def _attest_balloon(level: int, guest: StartedGuest) -> Iterator[Check]:
    if guest.backing is not None:
        yield Check("the memory that the balloon leaves to the guest", level, guest.backing.left_bytes)
        if guest.inside.memory_bytes > level:
            yield Check("the memory (guest)", f"at most {level} bytes", f"{guest.inside.memory_bytes} bytes")


BALLOON = MachineSetting(
    "balloon",
    "memory that the balloon leaves to the guest, e.g. 512M",
    _parse_balloon,
    ("512M", "256M"),
    read=parse_size,
    machines=Machine.QEMU,
    qemu=lambda _size, _architecture: ("-device", "virtio-balloon-pci,id=balloon"),
    monitor=lambda size: (("balloon", {"value": size}),),
    modules=("virtio_balloon",),
    attest=_attest_balloon,
)


def _attest_ksm(level: Switch, guest: StartedGuest) -> Iterator[Check]:
    if guest.backing is not None:
        yield Check(
            "whether identical pages of the guest's memory may be merged",
            level is Switch.ON,
            guest.backing.mergeable,
        )


KSM = MachineSetting(
    "ksm",
    "whether this host's kernel may merge the guest's pages with identical ones of other processes",
    one_of(*Switch),
    tuple(Switch),
    read=Switch,
    machines=Machine.QEMU,
    qemu=lambda level, _architecture: ("-machine", f"mem-merge={level}"),
    attest=_attest_ksm,
)


def _attest_reporting(level: Switch, guest: StartedGuest) -> Iterator[Check]:
    if guest.backing is not None:
        yield Check("whether the guest reports free pages", level is Switch.ON, guest.backing.reports_free)


FREE_PAGE_REPORTING = MachineSetting(
    "free_page_reporting",
    "whether the guest tells its hypervisor which pages are free, so that this host gets them back",
    one_of(*Switch),
    tuple(Switch),
    read=Switch,
    machines=Machine.QEMU,
    qemu=pass_words_at(Switch.ON, "-device", "virtio-balloon-pci,free-page-reporting=on"),
    modules=("virtio_balloon",),
    attest=_attest_reporting,
)
_MEMORY_FACTORS: tuple[MachineSetting[Any], ...] = (
    HUGEPAGES, THP, PREALLOC, NUMA, BALLOON, KSM, FREE_PAGE_REPORTING
)  # fmt: skip


def has_memory_factors(levels: Levels) -> bool:
    """Return whether any factor of memory has a level; only then is the memory's backing attested."""
    return any(factor in levels for factor in _MEMORY_FACTORS)


def make_memory_arguments(levels: Levels, *, shared: bool) -> list[str]:
    """Return QEMU's arguments for the guest's memory; empty if QEMU's default will do.

    `shared`: processes other than QEMU have to map the memory.
    """
    options = collect_guest_options(levels, lambda factor: factor.backing)
    if not options and not shared:
        return []
    kind = "ram"
    # Huge pages, and memory that other processes map, need a file descriptor, which `ram` does not have.
    if shared or levels[HUGEPAGES] is not HugePages.OFF:
        kind = "memfd"
    words = [f"memory-backend-{kind}", "id=memory", f"size={format_size(levels[MEMORY])}", *options]
    return [
        "-object",
        ",".join([*words, f"share={format_switch(shared)}"]),
        "-machine",
        "memory-backend=memory",
    ]


def check_memory(levels: Levels, *, here: bool, on_pci: bool) -> None:
    """Raises `PlatformUnusableError` for memory that this host cannot provide, or that the guest cannot have."""
    # Without a factor of memory, the host needs no special feature.
    asked = [factor.name for factor in _MEMORY_FACTORS if factor in levels]
    if not asked:
        return
    name = asked[0]
    if not here:
        raise _make_refusal(
            f"{name} cannot be attested in a nested guest", f"leave out {name} for nested platforms"
        )
    if levels[START] is Start.RESTORED:
        raise _make_refusal(
            f"the memory of a restored guest is a file, which does not support {name}", "use start=cold"
        )
    pages = levels[HUGEPAGES]
    if pages is not HugePages.OFF:
        _check_hugepages(levels[MEMORY], pages)
    if THP in levels and levels[THP] is Switch.ON and "[never]" in _read_thp_mode():
        raise _make_refusal(
            "this host's kernel provides no transparent huge pages",
            f"as root: echo madvise >{_KERNEL}/transparent_hugepage/enabled",
        )
    node = levels.get(NUMA)
    if node is not None and not (_NODES / f"node{node}").is_dir():
        raise _make_refusal(f"this host has no NUMA node {node}", f"it has {_list_nodes()}")
    if levels.get(KSM) is Switch.ON and _read_ksm_state() != "1":
        raise _make_refusal(
            "this host's kernel does not merge pages: KSM is off", f"as root: echo 1 >{_KERNEL}/ksm/run"
        )
    _check_balloon(levels, name, on_pci=on_pci)


def _check_balloon(levels: Levels, name: str, *, on_pci: bool) -> None:
    # Both factors are features of one device, virtio-balloon-pci.
    size = levels[MEMORY]
    balloon, reports = levels.get(BALLOON), levels.get(FREE_PAGE_REPORTING) is Switch.ON
    if (balloon is not None or reports) and not on_pci:
        raise _make_refusal(
            "machines without PCI have no balloon", f"use another machine type, or leave out {name}"
        )
    if balloon is not None and reports:
        raise _make_refusal("balloon and free_page_reporting cannot be combined", "leave out one of them")
    if balloon is not None and balloon >= size:
        raise _make_refusal(
            f"balloon={format_size(balloon)} is not less than the guest's memory ({format_size(size)})",
            "use a smaller balloon, or more memory",
        )


def _check_hugepages(size: int, pages: HugePages) -> None:
    wanted = pages.count_needed(size)
    if size % pages.bytes:
        raise _make_refusal(
            f"memory={format_size(size)} is not a multiple of the page size {pages}",
            f"use a multiple of {pages}",
        )
    free = pages.count_free()
    if free is None:
        raise _make_refusal(
            f"this host has no huge pages of {pages}", f"it has {', '.join(_list_hugepage_sizes())}"
        )
    if free < wanted:
        raise _make_refusal(
            f"this host has {format_count(free, 'free huge page')} of {pages}, but the guest needs {wanted}",
            f"as root: echo {wanted} >{pages.folder}/nr_hugepages",
        )


def _list_hugepage_sizes() -> list[str]:
    folders = (_KERNEL / "hugepages").glob("hugepages-*")
    return sorted(folder.name.removeprefix("hugepages-") for folder in folders)


def _list_nodes() -> str:
    return ", ".join(sorted(folder.name for folder in _NODES.glob("node[0-9]*"))) or "none"


def _read_ksm_state() -> str:
    try:
        return (_KERNEL / "ksm/run").read_text().strip()
    except OSError:
        return ""


def _read_thp_mode() -> str:
    try:
        return (_KERNEL / "transparent_hugepage/enabled").read_text()
    except OSError:
        return "[never]"


def _make_refusal(why: str, hint: str) -> PlatformUnusableError:
    return PlatformUnusableError(why, hint=hint)


def list_monitor_commands(levels: Levels) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the commands to send to QEMU's monitor once the guest's agent answers, with their arguments."""
    for factor, level in iterate_guest_levels(levels):
        yield from factor.monitor(level)


def list_modules(levels: Levels) -> Sequence[str]:
    """Return the modules that the guest's kernel needs for these levels."""
    modules: list[str] = []
    for factor, _ in iterate_guest_levels(levels):
        modules += factor.modules
    return modules
