"""What factors of machines are made of: levels with a type, and what a disk's levels do wherever it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NamedTuple, Protocol, TypeVar

from guestmark.core.discovery import settings
from guestmark.core.factor import Setting
from guestmark.core.model import Cell

L = TypeVar("L")
EXCLUDE = "or exclude the combination"


class DiskKind(Flag):
    """What a disk may be, for factors that only some disks have."""

    IMAGE = auto()  # a file that the hypervisor opens
    DEVICE = auto()  # a block device of this host
    DAEMON = auto()  # an image that the storage daemon serves
    LOOP = auto()  # an image that this host mounts itself
    DIRECTORY = auto()  # a directory of this host that the guest mounts
    SOURCE = auto()  # what is only read is given the level too
    HYPERVISOR = IMAGE | DEVICE | SOURCE
    ATTACHED = IMAGE | DEVICE | DAEMON
    TARGET = IMAGE | DEVICE | DAEMON | LOOP | DIRECTORY


class Check(NamedTuple):
    """One comparison of an attestation."""

    what: str
    asked: object
    found: object


class Refusal(NamedTuple):
    """Why a level cannot be combined with another, and what to do."""

    why: str
    hint: str


class Disk(Protocol):
    """What the factors of a disk may ask of it; `setting.disk.DiskSpec` answers."""

    def level(self, factor: DiskSetting[L]) -> L | None:
        """Its level of another factor; None where nobody says and QEMU decides."""

    def __getitem__(self, factor: DiskSetting[L]) -> L:
        """Its level of a factor that every disk has."""


@dataclass(frozen=True, slots=True)
class AttestedDrive:
    """A disk of a started guest of QEMU, as an attestation sees it."""

    disk: Disk
    inserted: Mapping[str, Any]  # what `query-block` says of it
    engines: frozenset[str]  # what the process has for asynchronous I/O
    processors: int  # of the guest
    in_guest: Callable[[str], str]  # a file in its directory in the guest's sysfs; empty when there is none
    query: Callable[[str], Any]  # asks QEMU's monitor

    @property
    def image(self) -> Mapping[str, Any]:
        """What QEMU says of the image."""
        found: Mapping[str, Any] = self.inserted["image"]
        return found


@dataclass(frozen=True, slots=True)
class ServedDisk:
    """A disk that a process beside the hypervisor serves, as an attestation sees it."""

    flags: int  # with which that process has opened the image
    engines: frozenset[str]  # what it has for asynchronous I/O
    write_cache: str  # what the guest's kernel knows of the disk's cache


def _make_no_options(_level: Any, _disk: Disk) -> Sequence[str]:
    return ()


def _attest_nothing(_level: Any, _seen: Any) -> Iterable[Check]:
    return ()


def _refuse_nothing(_level: Any, _disk: Disk, _cell: Cell) -> Refusal | None:
    return None


Options = Callable[[L, Disk], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSetting(Setting[L]):
    """A factor of disks. Its functions are given a level and the disk that has it, and need not be there.

    Those that make options return them as QEMU and its tools write them, `cache=none` for instance.
    """

    on: DiskKind = DiskKind.HYPERVISOR
    keeps: bool = True  # whether it may decide what a power cut leaves of a disk
    drive: Options[L] = _make_no_options  # of QEMU's `-drive`
    device: Options[L] = _make_no_options  # of QEMU's `-device`
    controller: Options[L] = _make_no_options  # of the `-device` that such disks share
    objects: Options[L] = _make_no_options  # whole `-object`s, given once
    blockdev: Options[L] = _make_no_options  # of the storage daemon's `--blockdev`
    export: Options[L] = _make_no_options  # of the storage daemon's `--export`
    create: Options[L] = _make_no_options  # of `qemu-img create`, each after its `-o`
    refuse: Callable[[L, Disk, Cell], Refusal | None] = _refuse_nothing
    attest: Callable[[L, AttestedDrive], Iterable[Check]] = _attest_nothing
    attest_served: Callable[[L, ServedDisk], Iterable[Check]] = _attest_nothing


def pass_level_as(name: str) -> Options[Any]:
    """An option that has the level as its value."""
    return lambda level, _disk: (f"{name}={level}",)


def list_disk_settings() -> Iterator[DiskSetting[Any]]:
    """All factors of disks."""
    return (factor for factor in settings() if isinstance(factor, DiskSetting))


def is_disk_setting(name: str, on: DiskKind | None = None) -> bool:
    """Whether a factor of this name is one of disks, and of such disks."""
    return any(factor.name == name and (on is None or on in factor.on) for factor in list_disk_settings())


def affects_durability(name: str) -> bool:
    """Whether the factor of this name may decide what a power cut leaves of a disk."""
    return all(factor.keeps for factor in list_disk_settings() if factor.name == name)


def iterate_disk_levels(disk: Disk) -> Iterator[tuple[DiskSetting[Any], Any]]:
    """The factors of a disk that have a level, each with it."""
    for factor in list_disk_settings():
        level = disk.level(factor)
        if level is not None:
            yield factor, level


def collect_options(disk: Disk, of: Callable[[DiskSetting[Any]], Options[Any]]) -> list[str]:
    """The options that a disk's levels make: `of` selects the function."""
    return [word for factor, level in iterate_disk_levels(disk) for word in of(factor)(level, disk)]


def join_with_leading_comma(words: Iterable[str]) -> str:
    """Options as they follow others."""
    return "".join(f",{word}" for word in words)


def format_switch(on: bool) -> str:
    """`on` or `off`."""
    return "on" if on else "off"
