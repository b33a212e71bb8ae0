"""The description of a kind of platform, which drives grammar, help, completion, doctor and preflight."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guestmark.core.discovery import import_descriptions, index_by_name, list_settings_for
from guestmark.core.factor import Factor, Machine, has_factor_named
from guestmark.core.levels import Levels

if TYPE_CHECKING:
    import subprocess

_PACKAGE = "guestmark.platforms"
# The prefix of parameters of the user's own definitions of machines.
OWN_PARAMETER = "own."


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the distribution that guestmark runs; `package` is the Debian package that installs it.

    `elsewhere` lists paths outside `PATH` where distributions keep programs that only other programs start.
    """

    name: str
    package: str
    elsewhere: tuple[str, ...] = ()

    @property
    def path(self) -> str | None:
        """Path of the installed program; None if it is not installed."""
        if found := shutil.which(self.name):
            return found
        for path in self.elsewhere:
            if os.access(path, os.X_OK):
                return path
        return None

    @property
    def command(self) -> str:
        """The word that runs it: its bare name if `PATH` finds it, else its path."""
        return self.name if shutil.which(self.name) else self.path or self.name


@contextlib.contextmanager
def start_version_queries() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Yield a function that starts `PROGRAM --version` with pipes for its output; all end with the block."""
    # Few commands ask for versions; the others need not wait for these imports.
    import subprocess

    from guestmark.core.supervision import start_supervision
    from guestmark.core.temporary import scratch_directory

    # Some programs create a runtime directory even to print their version; this one is removed afterwards.
    with scratch_directory("version") as runtime_directory, start_supervision() as supervised:

        def start(path: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*supervised.before, path, "--version"],
                env={**os.environ, "XDG_RUNTIME_DIR": str(runtime_directory)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **supervised.options,
            )

        yield start


_VERSION_S = 10.0


def read_version_line(path: str) -> str:
    """Return the first line that `PROGRAM --version` prints.

    Raises `OSError` or `subprocess.SubprocessError` if it cannot be run, and `IndexError` if it prints nothing.
    """
    import subprocess

    with start_version_queries() as start, start(path) as process:
        try:
            output, errors = process.communicate(timeout=_VERSION_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, output, errors)
    return output.decode(errors="replace").splitlines()[0]


def _no_advice(_destination: str) -> str:
    return ""


def _no_objection(_destination: str, _levels: Levels) -> str:
    return ""


def _one_processor(_levels: Levels) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class PlatformKind:
    """One kind of platform; a name such as `tcg/kvm` consists of one or more of them.

    `load_class` imports and returns the class that starts its machines: called with a `platform_spec.Layer` it gives a
    `platforms.base.Platform`. A kind without it is reserved: its name is understood, and refused as not supported.
    `load_nested_class` does the same for guests inside such a machine; that class is called with the whole
    `PlatformSpec`. Both are functions because every start imports the descriptions, and importing the classes takes
    longer than most command lines run.
    """

    name: str
    # What it is, in a few words, for newcomers.
    help: str
    load_class: Callable[[], Callable[[Any], Any]] | None = None
    # True if another guest can be started inside its machines.
    holds_guests: bool = False
    # True if it needs /dev/kvm to start.
    needs_kvm: bool = False
    # True if the code of its machines is translated, all of it.
    emulates: bool = False
    load_nested_class: Callable[[], Callable[[Any], Any]] | None = None
    # True if it boots its own kernel; otherwise workloads run on a kernel that is already running.
    guest: bool = True
    # True if, without a guest, a kernel other than this host's answers system calls (gVisor).
    own_kernel: bool = False
    # True if it is another machine, with its own files, users and processors.
    remote: bool = False
    # True if such a machine nevertheless runs on this host.
    on_this_host: bool = False
    # Whether @ARCH may, or must, follow its name.
    takes_arch: bool = False
    needs_arch: bool = False
    # True if only programs are emulated, so that what the agent does itself would be done by the host.
    only_programs: bool = False
    # What follows its name after a colon, such as DEST, and an example of it for errors.
    destination: str = ""
    example_destination: str = "lab1"
    # Returns a hint for an invalid destination; empty for a valid one.
    advice: Callable[[str], str] = _no_advice
    # Returns why machines of that destination cannot have these levels of factors; empty if they can.
    objection: Callable[[str, Levels], str] = _no_objection
    # What to do instead of nesting it inside another machine.
    instead_of_nesting: str = "nesting is written outermost first, e.g. tcg/kvm"
    # True if it has firmware, and network cards that boot.
    boots_firmware: bool = False
    # What runs its machines: they accept the factors that name it, and `factors`.
    machine: Machine = Machine.NONE
    factors: tuple[Factor, ...] = ()
    # Its role around other guests: those accept the factors that name it, and `outer_factors`.
    outer: Machine = Machine.NONE
    outer_factors: tuple[Factor, ...] = ()
    # Levels of disk factors that every disk of its machines has.
    disk: Mapping[str, str] = field(default_factory=dict)
    # The factor that selects how its disks are attached.
    bus_factor: str = "bus"
    # Filesystems with which it mounts directories of this host.
    shares: tuple[str, ...] = ()
    # Programs that it needs on the host.
    programs: tuple[Program, ...] = ()
    # Number of processors of a machine with these levels of its factors.
    processors: Callable[[Levels], int] = _one_processor
    # What its hypervisor counts when a system call leaves the guest; a counter of `platforms.counters`.
    counter: str = ""
    # True if this process knows when the start of such a remote machine was ordered.
    starts_timed: bool = False
    # Prefix of the factors that are parameters of its machines, whatever follows.
    parameter_prefix: str = ""
    # True if it is listed before all others.
    first: bool = False
    # Seconds after which a start has failed.
    start_limit_s: float = 60.0

    @property
    def is_supported(self) -> bool:
        """Whether this version can start machines of this kind."""
        return self.load_class is not None

    @property
    def takes_destination(self) -> bool:
        """Whether a colon and a destination follow its name, as in `ssh:DEST`."""
        return bool(self.destination)

    @property
    def example_name(self) -> str:
        """An example of a platform of this kind, for errors."""
        return f"{self.name}:{self.example_destination}" if self.takes_destination else self.name

    @property
    def accepted_factors(self) -> tuple[Factor, ...]:
        """All factors that its machines accept."""
        return (*self.factors, *list_settings_for(self.machine))

    @property
    def accepted_inside(self) -> tuple[Factor, ...]:
        """All factors that guests inside it accept in addition to their own."""
        return (*self.outer_factors, *list_settings_for(self.outer))

    def takes_factor(self, factor: str) -> bool:
        """Return whether its machines accept the factor of this name."""
        if self.parameter_prefix and factor.startswith(self.parameter_prefix):
            return True
        return has_factor_named(self.accepted_factors, factor)


@functools.cache
def index_platform_kinds() -> Mapping[str, PlatformKind]:
    """Return all kinds of platforms by name, including reserved ones: the host first, then in alphabetical order."""
    kinds: list[PlatformKind] = []
    for module in import_descriptions(_PACKAGE):
        kinds += getattr(module, "PLATFORMS", ())
    return index_by_name(
        sorted(kinds, key=lambda kind: (not kind.first, kind.guest, kind.remote, kind.name)), "platform"
    )


def list_platform_names() -> tuple[str, ...]:
    """Return the names of single layers that can be measured, for errors, help and completion.

    Layers that need an architecture or a destination after their name are left out.
    """
    names = []
    for name, kind in index_platform_kinds().items():
        if kind.is_supported and not kind.takes_destination and not kind.needs_arch:
            names.append(name)
    return tuple(names)


def list_platform_forms() -> tuple[str, ...]:
    """Return how single layers are written, for errors: `kvm`, `tcg[@ARCH]`, `user@ARCH`, `ssh:DEST`."""
    forms: list[str] = []
    for name, kind in index_platform_kinds().items():
        if not kind.is_supported:
            continue
        if kind.takes_destination:
            forms.append(f"{name}:{kind.destination}")
        elif kind.needs_arch:
            forms.append(f"{name}@ARCH")
        elif kind.takes_arch:
            forms.append(f"{name}[@ARCH]")
        else:
            forms.append(name)
    return tuple(forms)


def is_machine_factor(factor: str) -> bool:
    """Return whether any kind of machine, or a guest around one, accepts the factor of this name."""
    for kind in index_platform_kinds().values():
        if kind.takes_factor(factor) or has_factor_named(kind.accepted_inside, factor):
            return True
    return False
