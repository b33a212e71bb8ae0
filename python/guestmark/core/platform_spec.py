"""The names of platforms: `host`, `kvm`, `tcg`, `uml`, `ssh:DEST`; `@ARCH`; `/` nests, outermost first."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guestmark.core.errors import UsageError
from guestmark.core.nearest import unknown

KINDS = ("host", "kvm", "ssh", "tcg", "uml")
_EMULATED = ("kvm", "tcg")  # kinds that can have a foreign architecture
_HOLDS_GUESTS = ("kvm", "ssh", "tcg")
_ARCH = re.compile(r"[a-z0-9_]{2,20}", re.ASCII)
# What ssh takes as a destination, without anything that could be read as an option or by a shell.
_DEST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_\[][A-Za-z0-9_.:\[\]-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Layer:
    """One level of nesting: `kind`, the guest's architecture (None: the host's) and, for ssh, the destination."""

    kind: str
    arch: str | None = None
    dest: str | None = None

    def __str__(self) -> str:
        return self.kind + (f":{self.dest}" if self.dest else "") + (f"@{self.arch}" if self.arch else "")


@dataclass(frozen=True, slots=True)
class PlatformSpec:
    """A parsed platform name; `str()` gives its one canonical spelling."""

    layers: tuple[Layer, ...]

    @property
    def outer(self) -> Layer:
        """The layer this host starts itself."""
        return self.layers[0]

    @property
    def inner(self) -> Layer:
        """The layer the workload runs on."""
        return self.layers[-1]

    @property
    def is_guest(self) -> bool:
        """Whether the workload runs in a virtual machine that guestmark starts."""
        return self.inner.kind not in {"host", "ssh"}

    @property
    def nested(self) -> bool:
        """Whether there is more than one layer."""
        return len(self.layers) > 1

    def __str__(self) -> str:
        return "/".join(str(layer) for layer in self.layers)


def parse_platform(text: str) -> PlatformSpec:
    """Parses one platform name. Raises `UsageError` naming what is wrong and the nearest known name."""
    stripped = text.strip()
    if not stripped:
        raise UsageError("a platform's name is empty", hint=f"known: {', '.join(KINDS)}")
    layers = tuple(_parse_layer(part, stripped) for part in stripped.split("/"))
    for position, layer in enumerate(layers):
        if position > 0 and layer.kind in {"host", "ssh"}:
            raise UsageError(
                f"platform {stripped!r}: {layer.kind} cannot be nested inside {layers[position - 1].kind}",
                hint="nesting is written outermost first, e.g. tcg/kvm",
            )
        if position < len(layers) - 1 and layer.kind not in _HOLDS_GUESTS:
            raise UsageError(
                f"platform {stripped!r}: {layer.kind} cannot hold another platform",
                hint=f"write {layers[position + 1]!s} alone"
                if layer.kind == "host"
                else "nest in kvm, tcg or ssh",
            )
    return PlatformSpec(layers)


def parse_platforms(values: Iterable[str]) -> tuple[PlatformSpec, ...]:
    """All platforms of repeated, comma-separated `--on` values in order; duplicates stay (they are null cells)."""
    names: Sequence[str] = [name for value in values for name in value.split(",")]
    if not any(name.strip() for name in names):
        raise UsageError("no platform is given", hint="e.g. --on host,uml,tcg")
    return tuple(parse_platform(name) for name in names)


def _parse_layer(part: str, whole: str) -> Layer:
    kind, colon, dest = part.strip().partition(":")
    if kind == "ssh":
        if not _DEST.fullmatch(dest):
            raise UsageError(
                f"platform {whole!r}: {dest!r} is not a destination of ssh", hint="e.g. ssh:user@example.org"
            )
        return Layer("ssh", dest=dest)
    if colon:
        raise UsageError(
            f"platform {whole!r}: only ssh takes a destination", hint="e.g. ssh:user@example.org"
        )
    kind, at, arch = kind.partition("@")
    if kind not in KINDS:
        raise unknown("platform", kind, KINDS)
    if not at:
        return Layer(kind)
    if kind not in _EMULATED:
        raise UsageError(f"platform {whole!r}: {kind} has the host's architecture", hint=f"write {kind}")
    if not _ARCH.fullmatch(arch):
        raise UsageError(f"platform {whole!r}: {arch!r} is not an architecture", hint="e.g. tcg@sparc64")
    return Layer(kind, arch=arch)
