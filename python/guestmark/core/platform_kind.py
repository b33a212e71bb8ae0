"""What a kind of platform says about itself: one description drives grammar, help, completion, doctor and preflight."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from guestmark.core.discovery import by_name, described
from guestmark.core.factor import Factor

_PACKAGE = "guestmark.platforms"


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the distribution that something here runs; `package` is what installs it on Debian."""

    name: str
    package: str


def _one(_levels: Mapping[str, str]) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class PlatformKind:
    """One kind of platform; a name such as `tcg/kvm` is made of one or more of them.

    `load` is `module:Class`; called with the layer it gives a `platforms.base.Platform`. A kind without it is reserved:
    its name is understood, and refused as not supported. `inside` is likewise what starts guests inside such a guest,
    called with the whole `PlatformSpec`.
    """

    name: str
    help: str  # what it is, in a few words, for somebody who has just arrived
    load: str
    holds_guests: bool = False  # another guest can be started inside
    inside: str = ""
    guest: bool = True  # boots a kernel of its own; otherwise workloads run on this host's kernel
    remote: bool = False  # another machine: it does not share this host's files
    takes_arch: bool = False  # may be followed by @ARCH
    takes_destination: bool = False  # is followed by :DEST
    boots_firmware: bool = False  # has firmware and network cards that boot
    factors: tuple[Factor, ...] = ()  # that its machines can be given
    outer_factors: tuple[Factor, ...] = ()  # that a guest inside it can be given besides
    disk: Mapping[str, str] = field(
        default_factory=dict
    )  # levels of disk factors that every disk of its machines has
    bus_factor: str = "bus"  # the factor that says what its disks are attached by
    programs: tuple[Program, ...] = ()  # that it needs on the host
    processors: Callable[[Mapping[str, str]], int] = _one  # of a machine with these levels of its factors
    counter: str = (
        ""  # of `platforms.counters`: what its hypervisor counts when a system call leaves the guest
    )
    start_limit_s: float = 60.0  # a start that takes longer has failed

    @property
    def supported(self) -> bool:
        """Whether machines of this kind can be started at all by this version."""
        return bool(self.load)

    def takes(self, factor: str) -> bool:
        """Whether its machines can be given the factor of this name."""
        return any(known.name == factor for known in self.factors)


@functools.cache
def platform_kinds() -> Mapping[str, PlatformKind]:
    """All kinds of platforms by name, the host first, then in alphabetical order; reserved ones are among them."""
    kinds: list[PlatformKind] = [
        kind for module in described(_PACKAGE) for kind in getattr(module, "PLATFORMS", ())
    ]
    return by_name(sorted(kinds, key=lambda kind: (kind.guest, kind.remote, kind.name)), "platform")


def platform_names() -> tuple[str, ...]:
    """The names of one layer that can be measured; what errors, help and completion offer."""
    return tuple(name for name, kind in platform_kinds().items() if kind.supported)
