"""The description of a kind of platform, which drives grammar, help, completion, doctor and preflight."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guestmark.core.discovery import by_name, described, settings_of
from guestmark.core.factor import Factor, Machine
from guestmark.core.levels import Levels

if TYPE_CHECKING:
    import subprocess

_PACKAGE = "guestmark.platforms"
# Before a parameter of the user's own definition of a machine.
OWN_PARAMETER = "own."


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the distribution that guestmark runs; `package` installs it on Debian.

    `elsewhere` are paths where distributions keep it, as it is for other programs and not in `PATH`.
    """

    name: str
    package: str
    elsewhere: tuple[str, ...] = ()

    @property
    def path(self) -> str | None:
        """Where it is installed; None where it is not."""
        there = (path for path in self.elsewhere if os.access(path, os.X_OK))
        return shutil.which(self.name) or next(there, None)

    @property
    def command(self) -> str:
        """The word to run it by: its name where that is enough, else where it is."""
        return self.name if shutil.which(self.name) else self.path or self.name


@contextlib.contextmanager
def start_version_queries() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts programs that are asked for their version, with pipes for what they say, and ends them all.

    Some make a directory of theirs just to say it: it is removed when they have ended, which they do with us.
    """
    import subprocess

    # Neither is what every command line waits for.
    from guestmark.core.supervision import supervision
    from guestmark.core.temporary import scratch_directory

    with scratch_directory("version") as theirs, supervision() as supervised:

        def start(path: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*supervised.before, path, "--version"],
                env={**os.environ, "XDG_RUNTIME_DIR": str(theirs)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **supervised.options,
            )

        yield start


_VERSION_S = 10.0


def read_version_line(path: str) -> str:
    """The first line of what a program says of its version.

    Raises `OSError`, `subprocess.SubprocessError` where it cannot be asked, and `IndexError` when it says nothing.
    """
    import subprocess

    with start_version_queries() as start, start(path) as asked:
        try:
            said, complaints = asked.communicate(timeout=_VERSION_S)
        except subprocess.TimeoutExpired:
            asked.kill()
            raise
    if asked.returncode:
        raise subprocess.CalledProcessError(asked.returncode, asked.args, said, complaints)
    return said.decode(errors="replace").splitlines()[0]


def _no_advice(_destination: str) -> str:
    return ""


def _one(_levels: Levels) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class PlatformKind:
    """One kind of platform; a name such as `tcg/kvm` is made of one or more of them.

    `load_class` imports and returns the class whose instances start its machines: called with a `platform_spec.Layer`
    the class gives a `platforms.base.Platform`. A kind without it is reserved: its name is understood, and refused as
    not supported. `load_nested_class` does the same for guests inside such a machine; that class is called with the
    whole `PlatformSpec`. Both are functions because a description is imported at every start, and the classes take
    longer to import than most command lines take to run.
    """

    name: str
    # What it is, in a few words, for newcomers.
    help: str
    load_class: Callable[[], Callable[[Any], Any]] | None = None
    # Whether another guest can be started inside it.
    holds_guests: bool = False
    # Whether it starts only where there is /dev/kvm.
    needs_kvm: bool = False
    load_nested_class: Callable[[], Callable[[Any], Any]] | None = None
    # Boots a kernel of its own; otherwise workloads run on one that runs already.
    guest: bool = True
    # Whether, without a guest, another kernel than this host's answers system calls.
    own_kernel: bool = False
    # Another machine, with files, users and processors of its own.
    remote: bool = False
    # Whether such a machine is run by this host all the same.
    on_this_host: bool = False
    # Whether its name may be followed by @ARCH.
    takes_arch: bool = False
    needs_arch: bool = False  # whether it must be
    # Whether what its agent does itself would be done by the host.
    only_programs: bool = False
    # What its name is followed by after a colon, such as DEST.
    destination: str = ""
    example_destination: str = "lab1"  # one, for errors
    # What to do about a destination that it cannot have; empty for one that it can.
    advice: Callable[[str], str] = _no_advice
    # Whether it has firmware, and network cards that boot.
    boots_firmware: bool = False
    # What runs its machines: factors that name it are theirs.
    machine: Machine = Machine.NONE
    # Others that its machines accept.
    factors: tuple[Factor, ...] = ()
    # What it is around other guests: factors that name it are theirs too.
    outer: Machine = Machine.NONE
    # Others that guests inside it accept.
    outer_factors: tuple[Factor, ...] = ()
    disk: Mapping[str, str] = field(
        default_factory=dict
    )  # levels of disk factors that every disk of its machines has
    # The factor that selects how its disks are attached.
    bus_factor: str = "bus"
    # Filesystems with which it mounts directories of this host.
    shares: tuple[str, ...] = ()
    programs: tuple[Program, ...] = ()  # those it needs on the host
    # Of a machine with these levels of its factors.
    processors: Callable[[Levels], int] = _one
    # Of `platforms.counters`: what its hypervisor counts when a system call leaves the guest.
    counter: str = ""
    # Whether this process knows when the start of such a remote machine was ordered.
    starts_timed: bool = False
    # Factors that begin so are parameters of its machines, whatever follows.
    parameter_prefix: str = ""
    # Whether it is named before all others.
    first: bool = False
    # A start that takes longer has failed.
    start_limit_s: float = 60.0

    @property
    def is_supported(self) -> bool:
        """Whether machines of this kind can be started at all by this version."""
        return self.load_class is not None

    @property
    def takes_destination(self) -> bool:
        """Whether its name goes on with which machine is meant."""
        return bool(self.destination)

    @property
    def example_name(self) -> str:
        """A name of one of its machines, for errors."""
        return f"{self.name}:{self.example_destination}" if self.takes_destination else self.name

    @property
    def accepted_factors(self) -> tuple[Factor, ...]:
        """All factors that its machines accept."""
        return (*self.factors, *settings_of(self.machine))

    @property
    def accepted_inside(self) -> tuple[Factor, ...]:
        """All factors that guests inside it accept in addition to their own."""
        return (*self.outer_factors, *settings_of(self.outer))

    def takes_factor(self, factor: str) -> bool:
        """Whether its machines accept the factor of this name."""
        if self.parameter_prefix and factor.startswith(self.parameter_prefix):
            return True
        return any(known.name == factor for known in self.accepted_factors)


@functools.cache
def platform_kinds() -> Mapping[str, PlatformKind]:
    """All kinds of platforms by name, the host first, then in alphabetical order; reserved ones are among them."""
    kinds: list[PlatformKind] = [
        kind for module in described(_PACKAGE) for kind in getattr(module, "PLATFORMS", ())
    ]
    return by_name(
        sorted(kinds, key=lambda kind: (not kind.first, kind.guest, kind.remote, kind.name)), "platform"
    )


def platform_names() -> tuple[str, ...]:
    """The names of single layers that can be measured, as offered by errors, help and completion.

    Those that need an architecture or the user's own destination behind them are not among them.
    """
    return tuple(
        name
        for name, kind in platform_kinds().items()
        if kind.is_supported and not kind.takes_destination and not kind.needs_arch
    )


def platform_forms() -> tuple[str, ...]:
    """How single layers are written, for errors: `kvm`, `tcg[@ARCH]`, `user@ARCH`, `ssh:DEST`."""
    return tuple(
        f"{name}:{kind.destination}"
        if kind.takes_destination
        else f"{name}@ARCH"
        if kind.needs_arch
        else f"{name}[@ARCH]"
        if kind.takes_arch
        else name
        for name, kind in platform_kinds().items()
        if kind.is_supported
    )


def is_machine_factor(factor: str) -> bool:
    """Whether machines of some kind, or the guest around one, can be given the factor of this name."""
    return any(
        kind.takes_factor(factor) or any(known.name == factor for known in kind.accepted_inside)
        for kind in platform_kinds().values()
    )
