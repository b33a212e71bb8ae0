"""Requested mount options, compared with those in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestmark.agent.results import CallError
from guestmark.core.errors import MachineError

if TYPE_CHECKING:
    from guestmark.agent.client import Agent

# Options that a kernel shows under another name, or not at all because they are the absence of something.
_ALSO_SHOWN_AS = {
    "barrier=0": ("nobarrier",),
    "barrier=1": ("barrier",),
    # 9p before Linux 6.4 shows the mode alone, later ones its bits (fs/9p/v9fs.h)
    "cache=loose": ("loose", "cache=f"),
    "cache=mmap": ("mmap", "cache=5"),
}
_ABSENCES = {
    "defaults": (),
    "rw": ("ro",),
    "async": ("sync",),
    "atime": ("noatime",),
    "diratime": ("nodiratime",),
    "dev": ("nodev",),
    "exec": ("noexec",),
    "suid": ("nosuid",),
    "barrier": ("nobarrier", "barrier=0"),
    "barrier=1": ("nobarrier", "barrier=0"),
    "cache=none": ("loose", "mmap", "fscache", "cache=1", "cache=5", "cache=f", "cache=8f"),
}
_VALUE_FILLED_IN = frozenset({"compress", "compress-force", "discard", "space_cache"})
_CONTRADICTED_BY = {"barrier=0": ("barrier", "barrier=1")}
# Always shown when they are in force.
_ALWAYS_SHOWN = {
    "ro",
    "sync",
    "dirsync",
    "noatime",
    "nodiratime",
    "nodev",
    "noexec",
    "nosuid",
    "lazytime",
    "relatime",
}


@dataclass(frozen=True, slots=True)
class Live:
    """A mount as the guest's kernel reports it: `options` from every source, `text` as in /proc/mounts."""

    filesystem: str
    text: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Options that are certainly not in force, and those the kernel does not show."""

    refuted: tuple[str, ...]
    unconfirmed: tuple[str, ...]


def _shown_in_full(option: str, live: frozenset[str]) -> bool:
    """Whether the kernel shows the option with what it filled in: `compress=zstd` as `compress=zstd:3` (btrfs), and
    `compress` or `discard`, which have values of their own, with one.
    """
    name, equals, _ = option.partition("=")
    if equals:
        return any(setting.startswith(f"{option}:") for setting in live)
    return name in _VALUE_FILLED_IN and any(setting.startswith(f"{name}=") for setting in live)


def live_options(agent: Agent, device: str, directory: str) -> Live:
    """The live mount of `device` at `directory`. Raises `MachineError` when it is not mounted there."""
    for line in reversed(agent.facts().mounts.splitlines()):
        fields = line.split(" ")
        if len(fields) >= 4 and fields[1] == directory:
            shown = set(fields[3].split(","))
            break
    else:
        raise MachineError(f"{device} is not mounted at {directory}")
    # ext2 to ext4 show everything, defaults too, in a file of their own.
    try:
        more = agent.read_file(f"/proc/fs/ext4/{device.removeprefix('/dev/')}/options").decode(
            errors="replace"
        )
        shown |= set(more.split())
    except CallError:
        pass
    return Live(fields[2], fields[3], frozenset(shown))


def compare(asked: str, shown: Iterable[str]) -> Verdict:
    """Decides by what the kernel shows; an option it does not show is unconfirmed.

    Refuted is: an option that is always shown and is not, one whose opposite or whose name with another value is shown.
    """
    live = frozenset(shown)
    refuted, unconfirmed = [], []
    for option in filter(None, asked.split(",")):
        if option in live or any(name in live for name in _ALSO_SHOWN_AS.get(option, ())):
            continue
        if _shown_in_full(option, live):
            continue
        if option in _ABSENCES:
            if any(name in live for name in _ABSENCES[option]):
                refuted.append(option)
            continue
        name, equals, _ = option.partition("=")
        other_value = equals and any(setting.startswith(f"{name}=") for setting in live)
        opposite = f"no{option}" in live or (option.startswith("no") and option[2:] in live)
        contradicted = any(shown_one in live for shown_one in _CONTRADICTED_BY.get(option, ()))
        if option in _ALWAYS_SHOWN or other_value or opposite or contradicted:
            refuted.append(option)
        else:
            unconfirmed.append(option)
    return Verdict(tuple(refuted), tuple(unconfirmed))
