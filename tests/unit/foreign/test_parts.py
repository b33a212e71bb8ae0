"""Making parts: what is installed for it, what goes on at the same time, and what is said meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from guestmark.core.architectures import ARCHITECTURES, find_host_architecture
from guestmark.core.errors import GuestmarkError, PlatformUnusableError
from guestmark.foreign import agents, commands, kernels, parts, store
from guestmark.foreign.commands import run_command
from guestmark.foreign.packages import Package, Packages
from guestmark.foreign.progress import CombinedProgress, Progress
from tests.framework.known import known

S390X, SPARC64 = ARCHITECTURES["s390x"], ARCHITECTURES["sparc64"]


class Heard(Progress):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.about: set[float | None] = set()

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show_elapsed(self, what: str, elapsed_s: float, expected_s: float | None) -> None:
        self.lines.append(what)
        self.about.add(expected_s)

    def done(self, what: str, elapsed_s: float) -> None:
        self.lines.append(f"{what} done")


def system(place: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """PATH has nothing but these scripts, and what a shell needs."""
    for name in ("apt-cache", "id", "date", "sleep", "tail", "sed", "cat"):
        (place / name).symlink_to(f"/usr/bin/{name}")
    for name, script in {"dpkg": "", **programs}.items():
        file = place / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))


def test_packages_are_installed_by_the_installer_of_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(
        tmp_path,
        monkeypatch,
        apt_get=f'echo "$*" >> {tmp_path}/asked; sleep 0.5',
        sudo='[ "$1" = -n ] || exec "$@"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    heard = Heard()
    assert commands.install_packages(["bison", "flex"], heard)
    update, install = (tmp_path / "asked").read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("--no-remove --no-install-recommends install bison flex")
    assert heard.lines[0] == "installing packages: bison flex"


def test_what_apt_says_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "case $* in *install*) echo E: Unable to fetch some archives; exit 100;; esac"
    system(tmp_path, monkeypatch, apt_get=script, sudo='[ "$1" = -n ] || exec "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(GuestmarkError, match="bison cannot be installed: E: Unable to fetch") as caught:
        commands.install_packages(["bison"], Progress())
    assert "apt-get install bison" in caught.value.hint


def test_without_the_right_to_install_the_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, monkeypatch)
    assert not commands.install_packages(["bison"], Progress())
    with pytest.raises(PlatformUnusableError, match="need programs that are not installed here") as caught:
        parts.get_parts(SPARC64)
    assert "apt-get install" in caught.value.hint
    monkeypatch.setattr(commands, "find_checkout", lambda: tmp_path)  # installed from a wheel: no set-up
    assert not commands.install_packages(["bison"], Progress())


def test_agent_and_kernel_are_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(parts, "list_missing", lambda _: [])
    both = threading.Barrier(2, timeout=30)

    def made(what: str, result: object) -> object:
        def make(_: object, progress: Progress) -> object:
            progress.show_elapsed(what, 1, 5)
            both.wait()
            progress.show_elapsed(what, 2, 5)
            both.wait()
            progress.done(what, 3)
            return result

        return make

    monkeypatch.setattr(agents, "make_agent", made("the agent", tmp_path / "agent"))
    monkeypatch.setattr(kernels, "make_kernel", made("the kernel", "kernel"))
    heard = Heard()
    found = parts.get_parts(SPARC64, (), heard)
    assert [found.agent, found.kernel] == [tmp_path / "agent", "kernel"]
    assert any(
        line.endswith(("the agent and the kernel", "the kernel and the agent")) for line in heard.lines
    )
    assert heard.lines[-1] == "setting up tcg@sparc64 done"
    assert len(heard.about) == 1


@pytest.mark.parametrize("first", [agents, kernels])
def test_one_that_fails_ends_the_other(
    first: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(parts, "list_missing", lambda _: [])
    started = threading.Event()

    def fails(*_: object) -> None:
        started.wait(30)
        raise GuestmarkError("it does not compile")

    def goes_on(_: object, progress: Progress) -> None:
        started.set()
        run_command(["sleep", "600"], "waiting", log=tmp_path / "log", progress=progress, cwd=tmp_path)

    for module, make in ((agents, "make_agent"), (kernels, "make_kernel")):
        monkeypatch.setattr(module, make, fails if module is first else goes_on)
    with pytest.raises(GuestmarkError, match="it does not compile"):
        parts.get_parts(SPARC64)


def test_the_line_has_the_time_of_the_whole() -> None:
    heard = Heard()
    whole = CombinedProgress(heard, "setting up", 240.0)
    whole.show_elapsed("one", 3.0, 5.0)
    whole.done("one", 4.0)
    whole.show_elapsed("two", 0.0, None)
    assert heard.lines == ["setting up: one", "setting up: two"]
    assert heard.about == {240.0}


@pytest.fixture
def rust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only compiler: one of the distribution's, with its own library alone. Returns where libraries are."""
    rustlib = tmp_path / "lib" / "rustlib"
    own = rustlib / find_host_architecture().target / "lib"
    own.mkdir(parents=True)
    (own / "libstd-0.rlib").touch()
    rustc = tmp_path / "rustc"
    rustc.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    rustc.chmod(0o755)
    chain = agents.Toolchain(tmp_path / "cargo", rustc, "rustc 1.85.0")
    monkeypatch.setattr(agents, "_find_toolchains", lambda: (chain,))
    monkeypatch.setattr(
        agents, "find_package", lambda path: Package("libstd-rust-dev", "1.85-3", "rustc", "1.85-3")
    )
    return rustlib


def test_the_library_is_the_nearest_there_is(rust: Path) -> None:
    assert agents.find_toolchain(SPARC64) is None  # no release has a package
    assert known(agents.find_toolchain(S390X)).library is agents.Library.PACKAGE
    (rust / "src/rust/library/std").mkdir(parents=True)
    (rust / "src/rust/library/std/Cargo.toml").touch()
    assert known(agents.find_toolchain(SPARC64)).library is agents.Library.COMPILED
    assert agents.estimate_s(SPARC64) > agents.estimate_s(S390X)
    there = rust / S390X.target / "lib"
    there.mkdir(parents=True)
    (there / "libstd-1.rlib").touch()
    assert known(agents.find_toolchain(S390X)).library is agents.Library.INSTALLED


def test_a_library_that_is_not_served_is_said_to_be_compiled(
    rust: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release's security updates leave out some architectures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Packages, "refresh_lists", lambda *_: None)
    monkeypatch.setattr(Packages, "has_package", lambda *_: False)
    with pytest.raises(GuestmarkError, match=r"no libstd-rust-dev 1\.85-3 for s390x") as caught:
        agents.make_agent(S390X, Progress())
    assert "-src" in caught.value.hint


def test_sources_that_cannot_be_reached_are_not_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apt-get reports success when it could fetch no index, unless it is asked not to."""
    reason = "E: Failed to fetch http://example.org/InRelease  Temporary failure resolving"
    system(tmp_path, monkeypatch, apt_get=f"case $* in *Error-Mode=any*) echo '{reason}'; exit 100;; esac")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(GuestmarkError, match="Temporary failure resolving"):
        Packages(S390X, Progress()).refresh_lists(tmp_path / "log")


def test_nothing_is_installed_for_an_architecture_that_is_not_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(parts, "list_served", lambda: frozenset({"amd64", "arm64"}))
    monkeypatch.setattr(parts, "list_missing", lambda _: [ARCHITECTURES["riscv64"].cross])
    monkeypatch.setattr(commands, "install_packages", lambda *_: pytest.fail("something was installed"))
    with pytest.raises(PlatformUnusableError, match="no packages for riscv64") as caught:
        parts.get_parts(ARCHITECTURES["riscv64"])
    assert "prepare --help" in caught.value.hint


def test_the_reason_is_not_makes_own_last_line(tmp_path: Path) -> None:
    says = (
        "echo 'Kconfig:1: nothing there'; echo 'make[1]: *** [all] Error 1'; echo 'make: *** Error 2'; exit 2"
    )
    with pytest.raises(GuestmarkError, match=r"^configuring failed: Kconfig:1: nothing there$"):
        run_command(
            ["sh", "-c", says], "configuring", log=tmp_path / "log", progress=Progress(), cwd=tmp_path
        )


def test_an_interruption_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heard = Heard()
    with pytest.raises(KeyboardInterrupt), store.make_part(S390X, "kernel", "key", heard):
        raise KeyboardInterrupt
    assert heard.lines == [
        "stopped: the kernel for s390x was incomplete and has been removed; the same command builds it again"
    ]
    assert [path.name for path in store.find_architecture_directory(S390X).iterdir()] == [".lock"]


def test_cargo_builds_in_the_checkout_or_where_that_cannot_be_written_in_the_cache(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    found = agents._choose_build_directory(tmp_path, S390X, scratch)
    assert found == tmp_path / "target/foreign/s390x"
    assert found.is_dir()
    (tmp_path / "file").touch()
    assert agents._choose_build_directory(tmp_path / "file", S390X, scratch) == scratch
