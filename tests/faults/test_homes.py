"""Homes that are read-only, missing or unnamed, odd paths, and a mask that hides new files from others."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.own_program import find_agent_binary
from tests.framework import PACKAGES
from tests.framework.marks import long

RUN = (
    "import sys; sys.argv[0] = 'guestmark'; from guestmark.cli import main; sys.exit(main())",
    "exec", "--quiet", "--blocks", "1",
)  # fmt: skip


def measured(
    folder: Path,
    *words: str,
    on: str = "host,uml",
    within: tuple[str, ...] = (),
    ledger: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """A run with nothing in its environment but this, and all its temporary files in `folder`."""
    usual: Mapping[str, str] = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PACKAGES),
        "TMPDIR": str(folder),
        "GUESTMARK_AGENT": str(find_agent_binary()),
    }
    return subprocess.run(
        [
            *within,
            sys.executable,
            "-c",
            *RUN,
            "--on",
            on,
            "--ledger",
            str(ledger or folder / "ledger.sqlite"),
            *words,
            "--",
            "true",
        ],
        env={**usual, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        umask=0o077,
    )


def assert_measured(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert "sorry, this is a bug" not in done.stderr
    assert "block" in done.stdout
    assert "guestmark resume" not in done.stdout  # it is complete


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nothing can be made, not even by root: through a mount where that can be had."""
    home = tmp_path / "home"
    home.mkdir()
    if os.getuid() == 0:
        subprocess.run(["mount", "--bind", "-o", "ro", home, home], check=True)
        yield home
        subprocess.run(["umount", "--lazy", home], check=True)
    else:
        home.chmod(0o555)
        yield home


@pytest.mark.long
def test_a_read_only_home_is_no_hindrance_when_the_ledger_is_elsewhere(
    tmp_path: Path, read_only: Path
) -> None:
    assert_measured(measured(tmp_path, HOME=str(read_only)))
    assert (tmp_path / f"guestmark-cache-{os.getuid()}").is_dir()


def test_a_read_only_home_is_named_when_the_ledger_would_be_there(tmp_path: Path, read_only: Path) -> None:
    done = measured(tmp_path, ledger=read_only / "l.sqlite", HOME=str(read_only))
    assert done.returncode == 3
    assert "sorry" not in done.stderr
    assert "--ledger FILE" in done.stderr


@pytest.mark.parametrize("home", [{}, *(long({"HOME": odd}) for odd in ("", "relative"))])
def test_no_home_is_needed(tmp_path: Path, home: Mapping[str, str]) -> None:
    environment: Any = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **home}
    assert_measured(measured(tmp_path, **environment))
    assert not (tmp_path / ".cache").exists()
    assert not (tmp_path / "relative").exists()


def test_a_cache_that_is_somebody_elses_is_not_used(tmp_path: Path, read_only: Path) -> None:
    planted = tmp_path / f"guestmark-cache-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    done = measured(tmp_path, HOME=str(read_only))
    assert "it belongs to another user" in done.stderr
    assert "XDG_CACHE_HOME=DIRECTORY" in done.stderr


@pytest.mark.long
def test_spaces_and_other_scripts_in_every_path(tmp_path: Path) -> None:
    folder = tmp_path / "Größe, mit Leerzeichen=日本 'x'"
    folder.mkdir()
    cache = folder / "cache"
    (cache / "guestmark").mkdir(parents=True)
    usual = Path.home() / ".cache" / "guestmark" / "kernels"
    if usual.is_dir():  # else it is fetched
        (cache / "guestmark" / "kernels").symlink_to(usual)
    assert_measured(measured(folder, on="host,uml,tcg", HOME=str(folder), XDG_CACHE_HOME=str(cache)))
    assert not [path for path in folder.iterdir() if path.name.startswith("guestmark-")]


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="becomes a user that nobody knows, which takes root")
def test_a_user_that_only_has_a_number(tmp_path: Path) -> None:
    if subprocess.run(
        ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", sys.executable, "-c", "pass"],
        check=False, capture_output=True,
    ).returncode:  # fmt: skip
        pytest.skip("this Python is in a directory that others may not enter")
    folder = Path("/var/tmp") / f"guestmark-test-{os.getpid()}"
    folder.mkdir()
    try:
        os.chown(folder, 4242, 4242)
        become = ("setpriv", "--reuid=4242", "--regid=4242", "--clear-groups")
        # Where an administrator forbids cores for good, as build servers do, no plain user can raise that limit.
        assert_measured(measured(folder, on="host,tcg", within=("prlimit", "--core=0:0", *become)))
    finally:
        shutil.rmtree(folder)
