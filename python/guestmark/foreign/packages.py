"""The distribution's packages for another architecture, downloaded by apt without root; nothing is installed.

apt uses separate directories for lists, cache and state, so it sees one foreign architecture and an empty system; it
needs no `dpkg --add-architecture` and does not change the host's lists. As always, apt verifies the distribution's
signatures of all that it downloads.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.kernel import parse_dependencies
from guestmark.core.architectures import Architecture
from guestmark.core.errors import GuestmarkError
from guestmark.foreign import store
from guestmark.foreign.commands import run_command
from guestmark.foreign.progress import Progress

_LISTS = Path("/var/lib/apt/lists")
_LISTS_ARE_OLD_S = 6 * 3600.0
_TOOLS = ("apt-get", "apt-cache", "dpkg-deb")


@dataclass(frozen=True, slots=True)
class Package:
    """A binary package, and the source package that it was built from."""

    name: str
    version: str
    source: str
    source_version: str


class Packages:
    """The packages of one architecture in the host's package sources."""

    def __init__(self, architecture: Architecture, progress: Progress) -> None:
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise GuestmarkError(
                f"{architecture.name} needs Debian packages, but this system has no {missing[0]} to download them",
                hint="build the parts on a machine with Debian or Ubuntu, and copy them here: guestmark prepare --help",
            )
        self._architecture = architecture
        self._progress = progress
        self._home = store.find_architecture_directory(architecture) / "apt"

    @property
    def _apt_options(self) -> list[str]:
        name, home = self._architecture.name, self._home
        return [
            f"-oAPT::Architecture={name}",
            f"-oAPT::Architectures::={name}",
            f"-oDir::State={home / 'state'}",
            f"-oDir::State::lists={home / 'lists'}",
            f"-oDir::State::status={home / 'status'}",
            f"-oDir::Cache={home / 'cache'}",
            # By default apt downloads as its own user, who may not write here.
            "-oAPT::Sandbox::User=",
            "-oAPT::Install-Recommends=false",
            "-oDebug::NoLocking=true",
            # Translations and application metadata are of no use here.
            "-oAcquire::Languages=none",
            "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            "-oAcquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled=false",
            "-oAcquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled=false",
            "-qq",
        ]

    def refresh_lists(self, log: Path) -> None:
        """Updates the package lists unless they were updated recently."""
        for part in ("state", "lists/partial", "cache/archives/partial"):
            (self._home / part).mkdir(parents=True, exist_ok=True)
        # The agent's library and the kernel are downloaded at the same time.
        with (self._home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._refresh_locked(log)

    def _refresh_locked(self, log: Path) -> None:
        stamp = self._home / "read"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < _LISTS_ARE_OLD_S:
            return
        (self._home / "status").touch()
        try:
            run_command(
                ["apt-get", *self._apt_options, "-oAPT::Update::Error-Mode=any", "update"],
                f"reading the package lists for {self._architecture.name}",
                log=log,
                progress=self._progress,
                cwd=self._home,
                expected_s=5,
            )
        except GuestmarkError:
            # A failing source does not matter if the others provide what is needed.
            if not self.has_package("libc6"):
                raise
        if not self.has_package("libc6"):
            raise GuestmarkError(
                f"the package sources of this system have no packages for {self._architecture.name}",
                hint="use a newer release, or copy the parts from another machine: guestmark prepare --help",
            )
        stamp.touch()

    def has_package(self, package: str, version: str = "") -> bool:
        """Returns whether the package exists, in that version if one is given."""
        if version:
            return bool(self._query_cache("show", f"{package}={version}"))
        return bool(find_candidate(package, self._apt_options[:-1]))

    def list_dependencies(self, package: str, pattern: str) -> list[str]:
        """Returns the dependencies of a package whose names match the regular expression `pattern`."""
        return parse_dependencies(self._query_cache("depends", "--important", package), pattern)

    def download_packages(
        self, packages: Iterable[str], into: Path, log: Path, *, alone: bool = False
    ) -> list[Path]:
        """Downloads packages, with all their dependencies unless `alone`; returns the files, sorted by name.

        Raises `GuestmarkError` naming a package that does not exist.
        """
        wanted = list(packages)
        into.mkdir(exist_ok=True)
        (into / "partial").mkdir(exist_ok=True)
        how = [f"-oDir::Cache::archives={into}", "-y", "--download-only", "install"]
        if alone:
            how = ["download"]
        run_command(
            ["apt-get", *self._apt_options, *how, *wanted],
            f"downloading packages for {self._architecture.name}",
            log=log,
            progress=self._progress,
            cwd=into,
            expected_s=30,
        )
        found = sorted(into.glob("*.deb"))
        if not found:
            raise GuestmarkError(f"apt-get downloaded none of {' '.join(wanted)}", hint=f"see the log: {log}")
        return found

    def _query_cache(self, *question: str) -> str:
        return query_apt_cache(question, self._apt_options[:-1])


def query_apt_cache(question: Sequence[str], options: Sequence[str] = ()) -> str:
    """Returns the output of apt-cache; empty if it is not installed."""
    if shutil.which("apt-cache") is None:
        return ""
    command = ["apt-cache", *options, *question]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    ).stdout


def find_candidate(package: str, options: Sequence[str] = ()) -> str:
    """Returns the version of a package that apt would install; empty if it does not exist."""
    for line in query_apt_cache(("policy", package), options).splitlines():
        label, _, value = line.strip().partition(": ")
        if label == "Candidate" and value == "(none)":
            return ""
        if label == "Candidate":
            return value
    return ""


def list_served() -> frozenset[str] | None:
    """Returns the architectures that this system's package sources provide, as listed in apt's indexes.

    None without indexes, because the architectures are then unknown.
    """
    served: frozenset[str] | None = None
    for index in _LISTS.glob("*Release"):
        for line in index.read_text(errors="replace").splitlines():
            if line.startswith("Architectures:"):
                served = (served or frozenset()).union(line.split()[1:])
    return served


FORMAT = r"${Package}\t${Version}\t${source:Package}\t${source:Version}\n"


def describe_archives(archives: Iterable[Path]) -> Mapping[str, Package]:
    """Returns the packages in archives, by name."""
    found = {}
    for archive in archives:
        fields = subprocess.run(
            ["dpkg-deb", "-W", f"--showformat={FORMAT}", str(archive)],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        package = Package(*fields.strip().split("\t"))
        found[package.name] = package
    return found


_INFO = Path("/var/lib/dpkg/info")
# These packages contain the most common programs, so their lists are searched first.
_FIRST = ("coreutils", "dash", "bash", "util-linux")
# Directories in which packages install programs.
_OWN = ("/bin/", "/sbin/", "/lib", "/usr/", "/opt/")


@functools.cache
def find_package(path: str) -> Package | None:
    """Returns the package that installed a file on this host; None if no package did."""
    owner = find_owner(path)
    if owner is None or shutil.which("dpkg-query") is None:
        return None
    fields = _query_dpkg("-W", f"-f={FORMAT}", owner).splitlines()
    return Package(*fields[0].split("\t")) if fields else None


@functools.cache
def find_owner(path: str, info: Path = _INFO) -> str | None:
    """Returns the name of the package that installed a file.

    Reads dpkg's lists directly, because running dpkg takes ten times as long.
    """
    real = os.path.realpath(path)
    # Packages that predate the merge of /bin into /usr/bin list their files under the old paths.
    names = {path, path.removeprefix("/usr"), real, real.removeprefix("/usr")}
    if not any(name.startswith(_OWN) and not name.startswith("/usr/local/") for name in names):
        return None
    lines = [f"\n{name}\n".encode() for name in names]
    likely = [info / f"{name}.list" for name in (os.path.basename(path), *_FIRST)]
    for file in _list_lists(info, likely):
        with contextlib.suppress(OSError):
            held = file.read_bytes()
            if any(line in held for line in lines):
                return file.stem.partition(":")[0]
    return None


def _list_lists(info: Path, first: Iterable[Path]) -> Iterator[Path]:
    """Yields dpkg's lists of files, those in `first` before all others; the directory is listed only when needed."""
    yield from first
    yield from sorted(info.glob("*.list"))


def _query_dpkg(*question: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        ["dpkg-query", *question], capture_output=True, text=True, check=False, timeout=60, env=environment
    ).stdout
