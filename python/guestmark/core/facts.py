"""What is found out about a trial: typed where it is made and where it is read, flat where it is kept.

A producer makes a `Fact` and a reader asks `Facts.of` for that same type; no key is written twice. The keys under which
the fields are stored, and shown as a trial's `attestation` in result documents, are an interface that stays: a field
that is renamed keeps its key by `msgspec.field(name=…)`. `core.machine_facts` has the facts of machines; the facts that
only one kind of workload finds out are in its package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec


class Fact(msgspec.Struct, omit_defaults=True):
    """What one producer found out. A field that is None by default is absent while nothing is known of it."""


F = TypeVar("F", bound=Fact)


class Program(Fact, kw_only=True):
    """A program that was run: where it is on the machine and on this host, and the digests of both files."""

    path: str = msgspec.field(name="binary")
    sha256: str = msgspec.field(name="binary_sha256")
    host_path: str = msgspec.field(name="host_binary")  # empty when it is not there
    host_sha256: str = msgspec.field(name="host_binary_sha256")  # empty when it cannot be read
    xxh3: str | None = msgspec.field(name="binary_xxh3", default=None)  # of a large file, compared instead


class Mount(Fact, kw_only=True):
    """How a disk was mounted in the end; of the disk under test it is kept as `TARGET`."""

    options: str | None = msgspec.field(name="mount", default=None)  # in force, as in /proc/mounts
    unconfirmed: list[str] | None = msgspec.field(name="unconfirmed_options", default=None)
    caches: str | None = None  # why they could not be dropped


TARGET = "target"


class Flushes(Fact, kw_only=True):
    """Whether what was flushed on the machine has reached the host."""

    reached: str = msgspec.field(name="flushes_reached_host")  # yes, no or unknown
    why: str = msgspec.field(name="flushes_why")
    in_memory: bool = msgspec.field(name="location_in_memory")  # lost with the host's power, flushed or not


class Counted(Fact, kw_only=True):
    """What the hypervisor counted in an iteration, on average, by the names of `platforms.counters`."""

    each: dict[str, float] = msgspec.field(name="counted")


_PROGRAM, _ON_HOST = "binary_sha256", "host_"


class Facts:
    """The facts of a trial that has ended. Those that this version does not know are kept as well.

    Equal to facts that are kept as the same. Not a dataclass, so that it is stored as what is kept.
    """

    __slots__ = ("kept",)
    kept: Mapping[str, Any]  # by key, in builtin types: as it is stored, and shown in result documents

    def __init__(self, kept: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.kept = kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and self.kept == other.kept

    __hash__ = None  # type: ignore[assignment]

    def of(self, kind: type[F], name: str = "") -> F | None:
        """The facts of that type, added under that name.

        None when the trial has none of them, or has them in a form that this version does not know.
        """
        prefix = _prefix(name)
        found = {key: self.kept[prefix + key] for key in keys(kind) if prefix + key in self.kept}
        if not found:
            return None
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError:
            return None

    def programs(self) -> list[Program]:
        """All programs that were run, under whatever name, in the order in which they were found."""
        names = [key.removesuffix(_PROGRAM) for key in self.kept if key.endswith(_PROGRAM)]
        found = [
            self.of(Program, name.removesuffix("_"))
            for name in names
            if not name.endswith(_ON_HOST) and (not name or name.endswith("_"))
        ]
        return [program for program in found if program is not None]


class Findings:
    """The facts of a trial that goes on. What is added may still be completed by whoever made it."""

    def __init__(self) -> None:
        self._found: dict[tuple[type[Fact], str], Fact] = {}

    def add(self, fact: F, name: str = "") -> F:
        """Takes the fact, in place of an earlier one of its type; `name` tells several of one type apart."""
        self._found[type(fact), name] = fact
        return fact

    def include(self, others: Findings) -> None:
        """Takes all of the others."""
        self._found |= others._found

    def facts(self) -> Facts:
        """All that is known by now, as it is kept."""
        kept: dict[str, Any] = {}
        for (_, name), fact in self._found.items():
            kept |= {f"{_prefix(name)}{key}": value for key, value in flat(fact).items()}
        return Facts(kept)


def flat(fact: Fact) -> dict[str, Any]:
    """The fact by its keys, in builtin types."""
    plain: dict[str, Any] = msgspec.to_builtins(fact, str_keys=True)
    return plain


@functools.cache
def keys(kind: type[Fact]) -> tuple[str, ...]:
    """The keys under which facts of that type are kept."""
    return tuple(known.encode_name for known in msgspec.structs.fields(kind))


def _prefix(name: str) -> str:
    return f"{name}_" if name else ""
