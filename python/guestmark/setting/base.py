"""What factors of machines are made of: levels with a type, and what a disk's levels do wherever it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from guestmark.core.discovery import settings
from guestmark.core.factor import Factor

L = TypeVar("L")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Factor, Generic[L]):
    """A factor whose levels have a type: `read` makes one from its canonical text."""

    read: Callable[[str], L]

    def of(self, levels: Mapping[str, str]) -> L | None:
        """The level among a cell's factors; None where it is not given."""
        text = levels.get(self.name)
        return None if text is None else self.read(text)


class Check(NamedTuple):
    """One comparison of an attestation."""

    what: str
    asked: object
    found: object


class Disk(Protocol):
    """What the factors of a disk may ask of it."""

    def level(self, factor: DiskSetting[L]) -> L | None:
        """Its level of another factor; None where nobody says and QEMU decides."""


@dataclass(frozen=True, slots=True)
class Drive:
    """A disk of a started guest of QEMU, as an attestation sees it."""

    inserted: Mapping[str, Any]  # what `query-block` says of it
    engines: frozenset[str]  # what the process has for asynchronous I/O
    in_guest: Callable[[str], str]  # a file in its directory in the guest's sysfs; empty when there is none
    query: Callable[[str], Any]  # asks QEMU's monitor


@dataclass(frozen=True, slots=True)
class Served:
    """A disk that a process beside the hypervisor serves, as an attestation sees it."""

    flags: int  # with which that process has opened the image
    engines: frozenset[str]  # what it has for asynchronous I/O
    write_cache: str  # what the guest's kernel knows of the disk's cache


def nothing(_level: Any) -> Sequence[str]:
    """What a factor adds to a command line that it does not change."""
    return ()


def unseen(_level: Any, _seen: Any) -> Iterable[Check]:
    """What is attested of a factor where nothing tells."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSetting(Setting[L]):
    """A factor of disks. Its functions are given a level; those that make options return them as QEMU writes them.

    `keeps`: whether it decides what a power cut leaves of what was written.
    """

    default: str = ""  # empty: what QEMU does when it is told nothing
    keeps: bool = True
    drive: Callable[[L], Sequence[str]] = nothing  # of QEMU's `-drive`
    device: Callable[[L], Sequence[str]] = nothing  # of QEMU's `-device`
    blockdev: Callable[[L], Sequence[str]] = nothing  # of the storage daemon's `--blockdev`
    export: Callable[[L], Sequence[str]] = nothing  # of the storage daemon's `--export`
    attest: Callable[[L, Drive], Iterable[Check]] = unseen
    attest_served: Callable[[L, Served], Iterable[Check]] = unseen


def disk_settings() -> Iterator[DiskSetting[Any]]:
    """All factors of disks."""
    return (factor for factor in settings() if isinstance(factor, DiskSetting))


def levels_of(disk: Disk) -> Iterator[tuple[DiskSetting[Any], Any]]:
    """The factors of a disk that have a level, each with it."""
    for factor in disk_settings():
        level = disk.level(factor)
        if level is not None:
            yield factor, level


def switch(on: bool) -> str:
    """`on` or `off`."""
    return "on" if on else "off"
