"""guestmark's agent for another architecture, built from this checkout by the distribution's compilers."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guestmark import __version__
from guestmark.agent.binary import NAME, agent_binary, checkout
from guestmark.core.architectures import Architecture, architecture
from guestmark.core.errors import GuestmarkError, PlatformUnusableError, UsageError
from guestmark.core.platform_kind import Program
from guestmark.foreign import store
from guestmark.foreign.commands import run
from guestmark.foreign.packages import candidate
from guestmark.foreign.progress import Progress

KIND = "agent"
ABOUT_S = 100.0  # of two processors
_SOURCES = ("Cargo.toml", "Cargo.lock", ".cargo/config.toml", "crates/agent", "crates/wire")
# Where the standard library is compiled too, whole-program optimisation would double the time.
_PROFILE = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
_LEAST_RUST = (1, 85)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Rust compiler with its build tool; `std` says whether it has the standard library ready for the target."""

    cargo: Path
    rustc: Path
    version: str
    std: bool


class NotMadeError(PlatformUnusableError):
    """There is no agent yet for machines of `architecture`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(
            f"the agent for machines of {architecture.name} has not been made yet",
            hint=f"make it here, or take it over from another machine: guestmark prepare tcg@{architecture.name}",
        )
        self.architecture = architecture


def of_machine(machine_name: str) -> Path:
    """The agent for a machine that says this with `uname -m`: this host's own, or one that has been made.

    Raises `PlatformUnusableError` for an architecture there can be none for, `NotMadeError` where it can be
    made.
    """
    try:
        row = architecture(machine_name)
    except UsageError as error:
        raise PlatformUnusableError(
            f"there is no agent for {machine_name or 'a machine that does not say its architecture'}",
            hint=error.hint,
        ) from error
    if row.is_host:
        return agent_binary()
    if found := find(row):
        return found
    raise NotMadeError(row)


def find(architecture: Architecture) -> Path | None:
    """The agent for that architecture if it has been made; its path."""
    part = store.found(architecture, KIND, key(architecture))
    return None if part is None else part / NAME


def key(architecture: Architecture) -> str:
    """Changes with the agent's sources; where there are none, with guestmark's version."""
    return store.key_of([_sources() or __version__, architecture.target, _PROFILE])


@functools.cache
def _sources() -> str:
    """A hash of the sources, names and contents; empty where there are none."""
    root = checkout()
    if not (root / "crates" / "agent").is_dir():
        return ""
    digest = hashlib.sha256()
    for path in _files(root):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for name in _SOURCES:
        path = root / name
        yield from [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def missing(architecture: Architecture) -> list[Program]:
    """The programs needed to build it, and their packages."""
    found = []
    if toolchain(architecture) is None:
        found.append(Program("rustc with the sources of its library", _rust_packages()))
    if shutil.which(architecture.cross.name) is None:
        found.append(architecture.cross)
    if not _has_libc(architecture):
        found.append(Program(f"libc.a for {architecture.name}", f"libc6-dev-{architecture.name}-cross"))
    return found


def _has_libc(architecture: Architecture) -> bool:
    """Whether the static C library is there, which the agent is linked with."""
    if shutil.which(architecture.cross.name) is None:
        return False
    asked = [architecture.cross.name, "-print-file-name=libc.a"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    return os.path.isabs(said) and os.path.exists(said)


@functools.cache
def _rust_packages() -> str:
    """Debian 12 keeps a new enough Rust under another name."""
    if _version(candidate("rustc")) < _LEAST_RUST and candidate("rustc-web"):
        return "cargo-web rustc-web rust-web-src"
    return "cargo rustc rust-src"


def toolchain(architecture: Architecture) -> Toolchain | None:
    """A compiler that can make programs for the target: one with its library, else one with the library's sources."""
    able = [chain for chain in _toolchains() if _sysroot_has(chain, architecture) is not None]
    chosen = min(able, key=lambda chain: not _sysroot_has(chain, architecture), default=None)
    if chosen is None:
        return None
    return Toolchain(chosen.cargo, chosen.rustc, chosen.version, bool(_sysroot_has(chosen, architecture)))


def look_again() -> None:
    """Forgets which compilers there are, when others have been installed."""
    _toolchains.cache_clear()
    _sysroot_has.cache_clear()


@functools.cache
def _toolchains() -> tuple[Toolchain, ...]:
    """All pairs of cargo and rustc that are new enough."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    folders = [Path(found).parent for found in (shutil.which("cargo"),) if found]
    chains = []
    for folder in dict.fromkeys([*folders, home / "bin", Path("/usr/bin")]):
        cargo, rustc = folder / "cargo", folder / "rustc"
        if not (cargo.exists() and rustc.exists()):
            continue
        said = subprocess.run([rustc, "--version"], capture_output=True, text=True, check=False).stdout
        words = said.split()
        if len(words) > 1 and _version(words[1]) >= _LEAST_RUST:
            chains.append(Toolchain(cargo, rustc, said.strip(), std=False))
    return tuple(chains)


@functools.cache
def _sysroot_has(chain: Toolchain, architecture: Architecture) -> bool | None:
    """True: the target's library; False: its sources; None: neither."""
    asked = [str(chain.rustc), "--print", "sysroot"]
    sysroot = Path(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    rustlib = sysroot / "lib" / "rustlib"
    if any((rustlib / architecture.target / "lib").glob("libstd-*.rlib")):
        return True
    return False if (rustlib / "src/rust/library/std/Cargo.toml").exists() else None


def _version(text: str) -> tuple[int, ...]:
    numbers = text.partition("+")[0].split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers) if all(map(str.isdigit, numbers)) else ()


def make(architecture: Architecture, progress: Progress) -> Path:
    """Builds the agent and returns its path. Raises `GuestmarkError` with the compiler's own words."""
    root = checkout()
    chain = toolchain(architecture)
    if chain is None or not _sources():
        raise GuestmarkError(
            f"there is no agent for {architecture.name}, and it cannot be built here",
            hint="make it in a checkout of guestmark with Rust's sources installed: guestmark prepare --help",
        )
    with store.making(architecture, KIND, key(architecture), progress, lock=".lock-agent") as making:
        triple = architecture.target.upper().replace("-", "_")
        flags = (
            f"--remap-path-prefix={folder}={name}" for folder, name in _named(root, chain, making.scratch)
        )
        environment = {
            **_PROFILE,
            "PATH": f"{chain.cargo.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "RUSTC": str(chain.rustc),
            "RUSTC_BOOTSTRAP": "1",  # compiling the library is not among the stable features
            "CARGO_TARGET_DIR": str(making.scratch),
            f"CARGO_TARGET_{triple}_LINKER": architecture.cross.name,
            f"CARGO_TARGET_{triple}_RUSTFLAGS": " ".join(flags),
            "CARGO_TERM_COLOR": "never",
        }
        # The user's own flags would replace those that link statically.
        without = ("env", "-u", "RUSTFLAGS", "-u", "CARGO_ENCODED_RUSTFLAGS", "-u", "CARGO_BUILD_RUSTFLAGS")
        library = [] if chain.std else ["-Zbuild-std=std,panic_abort"]
        options = ["--no-default-features", "--target", architecture.target, *library]
        run(
            [
                *without,
                str(chain.cargo),
                "build",
                "--release",
                "--locked",
                "-p",
                NAME,
                "--bin",
                NAME,
                *options,
            ],
            f"building the agent for {architecture.name}",
            log=making.log,
            progress=progress,
            cwd=root,
            env=environment,
            about_s=ABOUT_S,
        )
        shutil.copy2(making.scratch / architecture.target / "release" / NAME, making.path / NAME)
        return making.complete(_tools(architecture, chain), (NAME,)) / NAME


def _named(root: Path, chain: Toolchain, scratch: Path) -> Iterator[tuple[Path, str]]:
    """Directories whose names would be in the binary, and what stands there instead: the same bytes everywhere."""
    yield root, "/guestmark"
    yield scratch, "/target"
    yield Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo"), "/cargo"
    yield chain.rustc.parent.parent / "lib" / "rustlib", "/rustlib"


def _tools(architecture: Architecture, chain: Toolchain) -> dict[str, str]:
    linker = subprocess.run(
        [architecture.cross.name, "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout.splitlines()[0]
    return {"rustc": chain.version, "linker": linker}
