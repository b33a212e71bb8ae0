"""Names of platforms: `host`, `kvm`, `tcg`, `uml`, `ssh:DEST`; `@ARCH` follows a layer, `/` nests, outermost first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from guestmark.core.architectures import (
    ARCHITECTURES,
    Architecture,
    find_architecture,
    find_host_architecture,
)
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.factor import has_factor_named
from guestmark.core.levels import Levels
from guestmark.core.platform_kind import (
    PlatformKind,
    index_platform_kinds,
    list_platform_forms,
    list_platform_names,
)

_ARCH = re.compile(r"[a-z0-9_]{2,20}", re.ASCII)
# What ssh takes as a destination, without anything that could be read as an option or by a shell.
_DEST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_:\[][A-Za-z0-9_.:\[\]-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Layer:
    """One level of nesting: `kind`, the guest's architecture (None means the host's) and, for ssh, the destination."""

    kind: str
    arch: str | None = None
    dest: str | None = None

    @property
    def description(self) -> PlatformKind:
        """Description of its kind. Raises `UsageError` for a kind that this version does not have."""
        kinds = index_platform_kinds()
        if self.kind not in kinds:
            raise make_unknown_name_error("platform", self.kind, list_platform_forms())
        return kinds[self.kind]

    @property
    def architecture(self) -> Architecture:
        """Architecture of its machines. Raises `UsageError` for one that this version does not have."""
        return find_host_architecture() if self.arch is None else find_architecture(self.arch)

    @property
    def is_foreign(self) -> bool:
        """Whether its machines have another architecture than this host."""
        return self.arch is not None and not self.architecture.is_host

    def __str__(self) -> str:
        text = self.kind
        if self.dest:
            text += f":{self.dest}"
        if self.arch:
            text += f"@{self.arch}"
        return text


class PlatformSpec:
    """A parsed platform name. `str()` gives its canonical spelling, which is also what the ledger stores.

    Immutable, and equal to a spec of equal layers. It is not a dataclass, because the codec would store its fields.
    """

    __slots__ = ("layers",)
    layers: tuple[Layer, ...]

    def __init__(self, layers: Iterable[Layer]) -> None:
        object.__setattr__(self, "layers", tuple(layers))

    @classmethod
    def read(cls, text: str) -> PlatformSpec:
        """Read a name that was checked when it was stored. Kinds that were removed since then are accepted."""
        return cls(_split_layer(part) for part in text.split("/"))

    @property
    def outer(self) -> Layer:
        """The layer that this host starts itself."""
        return self.layers[0]

    @property
    def inner(self) -> Layer:
        """The layer that the workload runs on."""
        return self.layers[-1]

    @property
    def is_nested(self) -> bool:
        """Whether the platform has more than one layer."""
        return len(self.layers) > 1

    @property
    def translates_twice(self) -> bool:
        """Whether an emulator emulates another one, so that a start takes a minute or more."""
        return sum(layer.description.emulates for layer in self.layers) > 1

    @property
    def is_guest(self) -> bool:
        """Whether the workload runs in a virtual machine that guestmark starts."""
        return self.inner.description.guest

    @property
    def is_this_host(self) -> bool:
        """Whether the workload runs on this very host's kernel.

        If so, it has the loop devices, users, processors, memory and directories of this process.
        """
        return not self.is_guest and not self.is_elsewhere

    @property
    def is_elsewhere(self) -> bool:
        """Whether all of it runs elsewhere: not even its hypervisors use this host's processors or memory.

        Reports also ask this of runs whose kind this version does not have; the answer is then False.
        """
        kind = index_platform_kinds().get(self.outer.kind)
        return kind is not None and kind.remote

    @property
    def starts_are_seen(self) -> bool:
        """Whether this process starts each machine itself, and can see how much of this host it uses."""
        return not self.is_elsewhere or self.outer.description.starts_timed

    @property
    def uses_this_host(self) -> bool:
        """Whether any part of it runs here, so that no other run may use this host meanwhile."""
        return not self.is_elsewhere or self.outer.description.on_this_host

    @property
    def shares_root(self) -> bool:
        """Whether its machines use this host's own files."""
        return not any(layer.is_foreign or layer.description.remote for layer in self.layers)

    @property
    def foreign_architecture(self) -> Architecture | None:
        """Architecture of its machines if that is not this host's, else None."""
        for layer in reversed(self.layers):
            if layer.arch is not None:
                return layer.architecture if layer.is_foreign else None
        return None

    def takes_factor(self, factor: str) -> bool:
        """Return whether the machine that the workload runs on accepts the factor of this name."""
        if self.inner.description.takes_factor(factor):
            return True
        outers = [layer.description for layer in self.layers[:-1]]
        return any(has_factor_named(outer.accepted_inside, factor) for outer in outers)

    def explain_objection(self, levels: Levels) -> str:
        """Return why machines of its destination cannot have these levels; empty if they can."""
        return self.inner.description.objection(self.inner.dest or "", levels)

    def count_processors(self, levels: Levels) -> int:
        """Return the number of processors of its machines at these levels of their factors."""
        return self.inner.description.processors(levels)

    @property
    def form(self) -> str:
        """Its name; if it stands for all machines of a kind, how one of them is named: `ssh:DEST`."""
        kind = self.inner.description
        if kind.takes_destination and not self.inner.dest:
            return f"{kind.name}:{kind.destination}"
        return str(self)

    def covers(self, other: PlatformSpec) -> bool:
        """Return whether both are the same platform, or this is only a kind and `other` one of its machines."""
        if self == other:
            return True
        is_one_of_many = len(other.layers) == 1 and other.inner.dest is not None
        return is_one_of_many and self.layers == (Layer(other.inner.kind),)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlatformSpec) and self.layers == other.layers

    def __hash__(self) -> int:
        return hash(self.layers)

    def __str__(self) -> str:
        return "/".join(str(layer) for layer in self.layers)

    def __repr__(self) -> str:
        return f"PlatformSpec({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PlatformSpec, (self.layers,)


HOST = PlatformSpec((Layer("host"),))
# The most nested guests: each one takes channels of all guests around it.
_DEEPEST = 3


def parse_platform(text: str) -> PlatformSpec:
    """Parse one platform name. Raises `UsageError` that says what is wrong and suggests the nearest known name."""
    stripped = text.strip()
    if not stripped:
        raise UsageError("a platform name is empty", hint=f"known: {', '.join(list_platform_forms())}")
    layers = tuple(_parse_layer(part, stripped) for part in stripped.split("/"))
    if (deep := sum(layer.description.guest for layer in layers)) > _DEEPEST:
        raise UsageError(
            f"platform {stripped!r}: {deep} nested guests are too many",
            hint=f"nest at most {_DEEPEST} guests, e.g. {'/'.join(stripped.split('/')[-_DEEPEST:])}",
        )
    for outer, layer in itertools.pairwise(layers):
        kind = layer.description
        if not kind.guest:
            hint = f"to compare them, name both: {stripped.replace('/', ',')}"
            if kind.remote:
                hint = kind.instead_of_nesting
            raise UsageError(
                f"platform {stripped!r}: {layer.kind} cannot be nested inside {outer.kind}", hint=hint
            )
    for layer, inner in itertools.pairwise(layers):
        kind = layer.description
        if not kind.holds_guests:
            hint = f"write {inner!s} alone"
            if kind.guest:
                hint = f"nest it in {_join_with_or(filter(_holds_guests, list_platform_names()))}"
            raise UsageError(
                f"platform {stripped!r}: {layer.kind} cannot contain another platform", hint=hint
            )
    return PlatformSpec(layers)


def parse_row_platform(text: str) -> PlatformSpec:
    """Parse a platform of a plan's row, where `ssh` or `own` stands for every machine of that kind.

    Raises `UsageError` as `parse_platform` does.
    """
    kind = index_platform_kinds().get(text.strip())
    if kind is not None and kind.takes_destination:
        return PlatformSpec((Layer(kind.name),))
    return parse_platform(text)


def parse_platforms(values: Iterable[str]) -> tuple[PlatformSpec, ...]:
    """Parse all platforms of repeated, comma-separated `--on` values, in order.

    Duplicates are kept: comparing a platform with itself is a null comparison.
    """
    names: list[str] = []
    for value in values:
        names += value.split(",")
    if not any(name.strip() for name in names):
        raise UsageError("no platform is given", hint="e.g. --on host,uml,tcg")
    return tuple(parse_platform(name) for name in names)


def _split_layer(part: str) -> Layer:
    text = part.strip()
    head, _, arch = text.partition("@")
    kind, colon, _ = head.partition(":")
    # A destination may hold an @ of its own, as in ssh:user@host, so it is split off first.
    if colon:
        return Layer(kind, dest=text.partition(":")[2] or None)
    return Layer(kind, arch=arch or None)


def _parse_layer(part: str, whole: str) -> Layer:
    layer = _split_layer(part)
    # Nothing follows an @ or : at the end. An empty text in place of None is refused below, with a hint.
    if part.strip().endswith("@"):
        layer = Layer(layer.kind, arch="")
    elif part.strip().endswith(":"):
        layer = Layer(layer.kind, dest="")
    kind = index_platform_kinds().get(layer.kind)
    if kind is not None and kind.takes_destination:
        dest = layer.dest or ""
        advice = kind.advice(dest) if _DEST.fullmatch(dest) else f"e.g. {kind.example_name}"
        if advice:
            raise UsageError(
                f"platform {whole!r}: {dest!r} is not a valid {kind.destination} for {kind.name}", hint=advice
            )
        return layer
    if layer.dest is not None:
        examples = [
            known.example_name for known in index_platform_kinds().values() if known.takes_destination
        ]
        raise UsageError(
            f"platform {whole!r}: {layer.kind} takes no destination", hint=f"e.g. {', '.join(examples)}"
        )
    if kind is None:
        raise make_unknown_name_error("platform", layer.kind, list_platform_forms())
    if layer.arch is None:
        if kind.needs_arch:
            raise UsageError(
                f"platform {whole!r}: {layer.kind} needs the architecture of the programs that it runs",
                hint=f"e.g. {layer.kind}@arm64; known: {', '.join(ARCHITECTURES)}",
            )
        return layer
    if not kind.takes_arch:
        raise UsageError(
            f"platform {whole!r}: {layer.kind} always has the host's architecture", hint=f"write {layer.kind}"
        )
    if not _ARCH.fullmatch(layer.arch.lower()):
        raise UsageError(
            f"platform {whole!r}: {layer.arch!r} is not an architecture", hint="e.g. tcg@sparc64"
        )
    return Layer(layer.kind, find_architecture(layer.arch).name)


def _holds_guests(name: str) -> bool:
    return index_platform_kinds()[name].holds_guests


def _join_with_or(names: Iterable[str]) -> str:
    *others, last = sorted(names)
    if not others:
        return last
    return f"{', '.join(others)} or {last}"
