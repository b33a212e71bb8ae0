"""guestmark's agent for another architecture, built from this checkout by the distribution's compilers."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from guestmark import __version__
from guestmark.agent.binary import NAME
from guestmark.core.architectures import Architecture, find_architecture, find_host_architecture
from guestmark.core.errors import GuestmarkError, PlatformUnusableError, UsageError
from guestmark.core.own_program import find_agent_binary, find_checkout
from guestmark.core.platform_kind import Program
from guestmark.foreign import store
from guestmark.foreign.commands import run_command
from guestmark.foreign.packages import Package, Packages, find_candidate, find_owner, find_package
from guestmark.foreign.progress import Progress

KIND = "agent"
# Measured on two processors: with Rust's library downloaded as a package, and with the library compiled.
_FETCHED_EXPECTED_S, _COMPILED_EXPECTED_S = 20.0, 60.0
_SOURCES = ("Cargo.toml", "Cargo.lock", ".cargo/config.toml", "crates/agent", "crates/wire")
# This profile of Cargo.toml builds in a third of the time of a release.
_PROFILE = "checkout"
_LEAST_RUST = (1, 85)


class Library(IntEnum):
    """Where the target's standard library comes from, the quickest first."""

    INSTALLED = 0
    # The distribution's package for the target's architecture, of the compiler's own version.
    PACKAGE = 1
    COMPILED = 2


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Rust compiler with its build tool, and the library for the target.

    `package` is the package with the library for this host.
    """

    cargo: Path
    rustc: Path
    version: str
    library: Library = Library.INSTALLED
    package: Package | None = None


class AgentNotBuiltError(PlatformUnusableError):
    """The agent for `architecture` machines has not been built yet."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(
            f"the agent for {architecture.name} machines has not been built yet",
            hint=f"build it here, or copy it from another machine: guestmark prepare tcg@{architecture.name}",
        )
        self.architecture = architecture


def find_for_machine(machine_name: str) -> Path:
    """Returns the agent for a machine whose `uname -m` prints `machine_name`: this host's, or one built earlier.

    Raises `PlatformUnusableError` for an architecture without agents, `AgentNotBuiltError` if one can be built.
    """
    try:
        row = find_architecture(machine_name)
    except UsageError as error:
        raise PlatformUnusableError(
            f"there is no agent for {machine_name or 'a machine that does not report its architecture'}",
            hint=error.hint,
        ) from error
    if row.is_host:
        return find_agent_binary()
    if found := find_agent(row):
        return found
    raise AgentNotBuiltError(row)


def find_agent(architecture: Architecture) -> Path | None:
    """Returns the path of the agent for an architecture; None if it has not been built."""
    part = store.find_part(architecture, KIND, compute_key(architecture))
    return None if part is None else part / NAME


def compute_key(architecture: Architecture) -> str:
    """Returns a key that changes with the agent's sources or, without sources, with guestmark's version."""
    return store.hash_inputs([_hash_sources() or __version__, architecture.target, _PROFILE])


@functools.cache
def _hash_sources() -> str:
    """Returns a hash of the sources' names and contents; empty if there are no sources."""
    root = find_checkout()
    if not (root / "crates" / "agent").is_dir():
        return ""
    digest = hashlib.sha256()
    for path in _list_sources(root):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _list_sources(root: Path) -> Iterator[Path]:
    for name in _SOURCES:
        path = root / name
        if path.is_file():
            yield path
        else:
            yield from sorted(file for file in path.rglob("*") if file.is_file())


def list_missing(architecture: Architecture) -> list[Program]:
    """Returns the missing programs that are needed to build the agent, with their packages."""
    found = []
    if find_toolchain(architecture) is None:
        name = "rustc"
        if not architecture.root:
            name = "rustc with the sources of its standard library"
        found.append(Program(name, _query_rust_packages(sources=not architecture.root)))
    if shutil.which(architecture.cross.name) is None:
        found.append(architecture.cross)
    if not _has_libc(architecture):
        found.append(Program(f"libc.a for {architecture.name}", f"libc6-dev-{architecture.name}-cross"))
    return found


def _has_libc(architecture: Architecture) -> bool:
    """Returns whether the static C library is installed, with which the agent is linked."""
    if shutil.which(architecture.cross.name) is None:
        return False
    asked = [architecture.cross.name, "-print-file-name=libc.a"]
    path = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    return os.path.isabs(path) and os.path.exists(path)


def _query_rust_packages(*, sources: bool) -> str:
    web = _find_package_suffix()
    if sources:
        return f"cargo{web} rustc{web} rust{web}-src"
    return f"cargo{web} rustc{web}"


@functools.cache
def _find_package_suffix() -> str:
    """Returns the suffix of Rust's packages: in Debian 12 the packages that are new enough have another name.

    The result is cached, because apt-cache takes a second if apt keeps no caches.
    """
    if _parse_version(find_candidate("rustc")) < _LEAST_RUST and find_candidate("rustc-web"):
        return "-web"
    return ""


def find_toolchain(architecture: Architecture) -> Toolchain | None:
    """Returns the compiler that builds for the target fastest; None if there is none."""
    return min(_list_able(architecture), key=lambda chain: chain.library, default=None)


def find_compiling_toolchain(architecture: Architecture) -> Toolchain | None:
    """Returns a compiler that needs no download: it has the target's library or compiles it from source."""
    return min(
        (chain for chain in _list_able(architecture) if chain.library is not Library.PACKAGE),
        key=lambda chain: chain.library,
        default=None,
    )


def find_library_compiler(architecture: Architecture) -> Toolchain | None:
    """Returns a compiler that compiles the target's library from its sources; None if they are not installed."""
    for chain in _list_able(architecture):
        if chain.library is Library.COMPILED:
            return chain
    return None


def make_library_sources_hint() -> str:
    """Returns how to install the sources of Rust's library."""
    return f"as root: apt-get install {_query_rust_packages(sources=True)}"


def _list_able(architecture: Architecture) -> Iterator[Toolchain]:
    """Yields each combination of a compiler and a library that it can use."""
    for chain in _find_toolchains():
        rustlib = _find_sysroot(chain) / "lib" / "rustlib"
        if any((rustlib / architecture.target / "lib").glob("libstd-*.rlib")):
            yield chain
        if architecture.root and (package := _find_library_package(rustlib)):
            yield replace(chain, library=Library.PACKAGE, package=package)
        if (rustlib / "src/rust/library/std/Cargo.toml").exists():
            yield replace(chain, library=Library.COMPILED)


def _find_library_package(rustlib: Path) -> Package | None:
    for file in (rustlib / find_host_architecture().target / "lib").glob("libstd-*.rlib"):
        if package := find_package(str(file)):
            return package
    return None


def forget_toolchains() -> None:
    """Clears the caches of installed compilers and packages, after others have been installed."""
    _find_toolchains.cache_clear()
    _find_sysroot.cache_clear()
    _find_package_suffix.cache_clear()
    find_owner.cache_clear()
    find_package.cache_clear()


@functools.cache
def _find_toolchains() -> tuple[Toolchain, ...]:
    """Returns all pairs of cargo and rustc that are new enough."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    folders = [home / "bin", Path("/usr/bin")]
    if found := shutil.which("cargo"):
        folders.insert(0, Path(found).parent)
    chains = []
    for folder in dict.fromkeys(folders):
        cargo, rustc = folder / "cargo", folder / "rustc"
        if not (cargo.exists() and rustc.exists()):
            continue
        version = subprocess.run([rustc, "--version"], capture_output=True, text=True, check=False).stdout
        words = version.split()
        if len(words) > 1 and _parse_version(words[1]) >= _LEAST_RUST:
            chains.append(Toolchain(cargo, rustc, version.strip()))
    return tuple(chains)


@functools.cache
def _find_sysroot(chain: Toolchain) -> Path:
    asked = [str(chain.rustc), "--print", "sysroot"]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())


def _parse_version(text: str) -> tuple[int, ...]:
    numbers = text.partition("+")[0].split("-")[0].split(".")[:2]
    if not all(map(str.isdigit, numbers)):
        return ()
    return tuple(map(int, numbers))


def make_agent(architecture: Architecture, progress: Progress) -> Path:
    """Builds the agent and returns its path. Raises `GuestmarkError` with the compiler's message."""
    root = find_checkout()
    chain = find_toolchain(architecture)
    if chain is None or not _hash_sources():
        raise GuestmarkError(
            f"the agent for {architecture.name} machines has not been built, and cannot be built here",
            hint="build it in a checkout of guestmark with Rust's sources installed: guestmark prepare --help",
        )
    with store.make_part(
        architecture, KIND, compute_key(architecture), progress, lock=".lock-agent"
    ) as making:
        if chain.package:
            chain = _add_library(chain, chain.package, architecture, making, progress)
        triple = architecture.target.upper().replace("-", "_")
        built = _choose_build_directory(root, architecture, making.scratch)
        flags = []
        for folder, name in _list_remapped_paths(root, chain, built):
            flags.append(f"--remap-path-prefix={folder}={name}")
        environment = {
            **make_cargo_environment(chain, built),
            f"CARGO_TARGET_{triple}_LINKER": architecture.cross.name,
            f"CARGO_TARGET_{triple}_RUSTFLAGS": " ".join(flags),
        }
        run_command(
            make_cargo_command(chain, ("build", "--profile", _PROFILE), [architecture]),
            f"building the agent for {architecture.name}",
            log=making.log,
            progress=progress,
            cwd=root,
            env=environment,
            expected_s=estimate_s(architecture),
        )
        shutil.copy2(built / architecture.target / _PROFILE / NAME, making.path / NAME)
        return making.complete(_describe_tools(architecture, chain), (NAME,)) / NAME


def _choose_build_directory(root: Path, architecture: Architecture, scratch: Path) -> Path:
    """Returns the directory for what cargo compiles: in the checkout if possible, where the next build finds it.

    Most of a build is Rust's own library, which does not change with the agent.
    """
    lasting = root / "target" / "foreign" / architecture.name
    try:
        lasting.mkdir(parents=True, exist_ok=True)
    except OSError:
        return scratch
    return lasting if os.access(lasting, os.W_OK) else scratch


def make_cargo_command(
    chain: Toolchain, verb: Sequence[str], architectures: Iterable[Architecture]
) -> tuple[str, ...]:
    """Returns the command that runs a subcommand of cargo, with its options, on the agent for these architectures."""
    # Flags in the user's environment would replace those of .cargo/config.toml, which link statically.
    without = ("env", "-u", "RUSTFLAGS", "-u", "CARGO_ENCODED_RUSTFLAGS", "-u", "CARGO_BUILD_RUSTFLAGS")
    options = ["--locked", "-p", NAME, "--bin", NAME, "--no-default-features"]
    for row in architectures:
        options += ["--target", row.target]
    if chain.library is Library.COMPILED:
        # Without its features the library has no backtraces, which need further crates.
        options += ["-Zbuild-std=std,panic_abort", "-Zbuild-std-features="]
    return (*without, str(chain.cargo), *verb, *options)


def make_cargo_environment(chain: Toolchain, target_directory: Path) -> dict[str, str]:
    """Returns the environment variables for `make_cargo_command`."""
    return {
        "PATH": f"{chain.cargo.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "RUSTC": str(chain.rustc),
        # A stable compiler refuses to compile the library, an unstable feature, unless this is set.
        "RUSTC_BOOTSTRAP": "1",
        "CARGO_TARGET_DIR": str(target_directory),
        "CARGO_TERM_COLOR": "never",
    }


def estimate_s(architecture: Architecture) -> float:
    """Returns the seconds that building the agent takes on two processors."""
    chain = find_toolchain(architecture)
    compiles = not architecture.root
    if chain:
        compiles = chain.library is Library.COMPILED
    if compiles:
        return _COMPILED_EXPECTED_S
    return _FETCHED_EXPECTED_S


def _add_library(
    chain: Toolchain,
    package: Package,
    architecture: Architecture,
    making: store.PartInMaking,
    progress: Progress,
) -> Toolchain:
    """Returns the compiler with the package's library next to its own, or a compiler that compiles the library.

    Raises `GuestmarkError` if neither is possible.
    """
    packages = Packages(architecture, progress)
    packages.refresh_lists(making.log)
    if not packages.has_package(package.name, package.version):
        if compiler := find_library_compiler(architecture):
            return compiler
        raise GuestmarkError(
            f"the package sources of this system have no {package.name} {package.version} for {architecture.name}",
            hint=make_library_sources_hint(),
        )
    archive = f"{package.name}={package.version}"
    (file,) = packages.download_packages([archive], making.scratch / "archives", making.log, alone=True)
    tree, sysroot = making.scratch / "library", making.scratch / "sysroot"
    run_command(
        ["dpkg-deb", "-x", str(file), str(tree)],
        f"unpacking {package.name} for {architecture.name}",
        log=making.log, progress=progress, cwd=making.scratch, expected_s=3,
    )  # fmt: skip
    rustlib = sysroot / "lib" / "rustlib"
    rustlib.mkdir(parents=True)
    for name, place in (
        (architecture.target, tree / "usr"),
        (find_host_architecture().target, _find_sysroot(chain)),
    ):
        (rustlib / name).symlink_to(place / "lib" / "rustlib" / name)
    # The directory is not passed in cargo's flags, because it would become part of the symbols' names, and each build
    # would differ.
    rustc = sysroot / "rustc"
    rustc.write_text(
        f'#!/bin/sh\nexec {shlex.quote(str(chain.rustc))} --sysroot {shlex.quote(str(sysroot))} "$@"\n'
    )
    rustc.chmod(0o755)
    return replace(chain, rustc=rustc)


def _list_remapped_paths(root: Path, chain: Toolchain, built: Path) -> Iterator[tuple[Path, str]]:
    """Yields directories whose names would be in the binary, with replacements that make builds identical."""
    yield root, "/guestmark"
    # Of several that fit, rustc takes the last.
    yield built, "/target"
    yield Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo"), "/cargo"
    yield _find_sysroot(chain) / "lib" / "rustlib", "/rustlib"


def _describe_tools(architecture: Architecture, chain: Toolchain) -> dict[str, str]:
    linker = subprocess.run(
        [architecture.cross.name, "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout.splitlines()[0]
    return {"rustc": chain.version, "linker": linker}
