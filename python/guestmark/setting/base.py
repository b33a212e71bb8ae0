"""The types of machine factors, and functions that collect what a disk's levels add to command lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from guestmark.core.discovery import list_settings
from guestmark.core.factor import Setting
from guestmark.core.model import Cell

# The type of a factor's levels.
L = TypeVar("L")
EXCLUDE = "or exclude the combination"


def quote_qemu_value(path: Path | str) -> str:
    """Return the path as a value of a QEMU option, in which commas are doubled."""
    return str(path).replace(",", ",,")


class DiskKind(Flag):
    """The kinds of disks, for factors that apply only to some of them."""

    # An image file that the hypervisor opens.
    IMAGE = auto()
    DEVICE = auto()  # a block device of this host
    # An image that the storage daemon serves.
    DAEMON = auto()
    # An image that this host mounts itself.
    LOOP = auto()
    # A directory of this host that the guest mounts.
    DIRECTORY = auto()
    # The source also gets the level, not only the target.
    SOURCE = auto()
    HYPERVISOR = IMAGE | DEVICE | SOURCE
    ATTACHED = IMAGE | DEVICE | DAEMON
    TARGET = IMAGE | DEVICE | DAEMON | LOOP | DIRECTORY


class Check(NamedTuple):
    """One comparison that an attestation makes."""

    what: str
    asked: object
    found: object


class Refusal(NamedTuple):
    """The reason why a level cannot be combined with another one, and a remedy."""

    why: str
    hint: str


class Disk(Protocol):
    """The part of a disk that its factors may read; `setting.disk.DiskSpec` implements it."""

    def level(self, factor: DiskSetting[L]) -> L | None:
        """Return the disk's level of another factor; None if none was given and QEMU decides."""

    def __getitem__(self, factor: DiskSetting[L]) -> L:
        """Return the disk's level of a factor that every disk has."""


@dataclass(frozen=True, slots=True)
class AttestedDrive:
    """A disk of a running QEMU guest, as its attestation sees it."""

    disk: Disk
    # The reply of QEMU's `query-block` about it.
    inserted: Mapping[str, Any]
    # The asynchronous I/O engines that QEMU's process has open.
    engines: frozenset[str]
    processors: int  # of the guest
    # Reads a file in the disk's directory of the guest's sysfs; returns an empty string if there is no such file.
    in_guest: Callable[[str], str]
    query: Callable[[str], Any]  # sends a command to QEMU's monitor

    @property
    def image(self) -> Mapping[str, Any]:
        """What `query-block` reports about the image."""
        found: Mapping[str, Any] = self.inserted["image"]
        return found


@dataclass(frozen=True, slots=True)
class ServedDisk:
    """A disk that is served by a process beside the hypervisor, as its attestation sees it."""

    # The flags with which that process has opened the image (open(2)).
    flags: int
    # The asynchronous I/O engines that the process has open.
    engines: frozenset[str]
    # `queue/write_cache` in the guest's sysfs.
    write_cache: str


def _make_no_options(_level: Any, _disk: Disk) -> Sequence[str]:
    return ()


def _attest_nothing(_level: Any, _seen: Any) -> Iterable[Check]:
    return ()


def _refuse_nothing(_level: Any, _disk: Disk, _cell: Cell) -> Refusal | None:
    return None


Options = Callable[[L, Disk], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSetting(Setting[L]):
    """A factor of disks. Each function is called with a level and the disk that has it; any may be omitted.

    Functions that return options spell them as QEMU and its tools do, such as `cache=none`.
    """

    on: DiskKind = DiskKind.HYPERVISOR
    # Whether the factor may affect what a power cut leaves on the disk.
    keeps: bool = True
    drive: Options[L] = _make_no_options  # of QEMU's `-drive`
    device: Options[L] = _make_no_options  # of QEMU's `-device`
    # Options of the `-device` that such disks share, such as a SCSI controller.
    controller: Options[L] = _make_no_options
    # Whole `-object` arguments, each passed once for all disks.
    objects: Options[L] = _make_no_options
    # Options of the storage daemon's `--blockdev`.
    blockdev: Options[L] = _make_no_options
    # Options of the storage daemon's `--export`.
    export: Options[L] = _make_no_options
    # Options of `qemu-img create`, each passed with its own `-o`.
    create: Options[L] = _make_no_options
    refuse: Callable[[L, Disk, Cell], Refusal | None] = _refuse_nothing
    attest: Callable[[L, AttestedDrive], Iterable[Check]] = _attest_nothing
    attest_served: Callable[[L, ServedDisk], Iterable[Check]] = _attest_nothing


def pass_level_as(name: str) -> Options[Any]:
    """Return a function that returns the option `name` with the level as its value."""
    return lambda level, _disk: (f"{name}={level}",)


def pass_words_at(wanted: object, *words: str) -> Callable[..., Sequence[str]]:
    """Return a function that returns `words` for the level `wanted`, and nothing for other levels."""

    def choose_words(level: object, *_context: object) -> Sequence[str]:
        if level == wanted:
            return words
        return ()

    return choose_words


def has_control_characters(text: str) -> bool:
    """Return whether the text has control characters of ASCII, which no level may contain."""
    return any(ord(character) < 32 or ord(character) == 127 for character in text)


def list_disk_settings() -> Iterator[DiskSetting[Any]]:
    """Yield all factors of disks."""
    return (factor for factor in list_settings() if isinstance(factor, DiskSetting))


def is_disk_setting(name: str, on: DiskKind | None = None) -> bool:
    """Return whether `name` is a factor of disks, and of disks of the kind `on` if that is given."""
    return any(factor.name == name and (on is None or on in factor.on) for factor in list_disk_settings())


def affects_durability(name: str) -> bool:
    """Return whether the factor `name` may affect what a power cut leaves on a disk."""
    return all(factor.keeps for factor in list_disk_settings() if factor.name == name)


def iterate_disk_levels(disk: Disk) -> Iterator[tuple[DiskSetting[Any], Any]]:
    """Yield each factor for which the disk has a level, with that level."""
    for factor in list_disk_settings():
        level = disk.level(factor)
        if level is not None:
            yield factor, level


def list_machine_options(disk: Disk) -> list[str]:
    """Return the options that a disk's levels add to its machine: those of `-object`, and those of its controller."""
    return [
        *collect_options(disk, lambda factor: factor.objects),
        *collect_options(disk, lambda factor: factor.controller),
    ]


def collect_options(disk: Disk, of: Callable[[DiskSetting[Any]], Options[Any]]) -> list[str]:
    """Return the options for a disk's levels; `of` selects the function of each factor that returns them."""
    words: list[str] = []
    for factor, level in iterate_disk_levels(disk):
        words += of(factor)(level, disk)
    return words


def repeat_option(option: str, values: Iterable[str]) -> Iterator[str]:
    """Yield `option` before each of its values, for programs that accept it several times."""
    for value in values:
        yield option
        yield value


def join_with_leading_comma(words: Iterable[str]) -> str:
    """Return the options as one string with a comma before each, to be appended to other options."""
    return "".join(f",{word}" for word in words)


def format_switch(on: bool) -> str:
    """Return `on` or `off`."""
    return "on" if on else "off"
