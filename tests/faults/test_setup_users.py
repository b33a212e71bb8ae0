"""A checkout that root has set up is for other users, too: its Python must not be one in root's home."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.framework import CHECKOUT
from tests.framework.checkouts import COPIED

SYSTEM = Path("/usr/bin/python3")
NOBODY = 65534
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="sets up as root and starts as somebody else")


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """An interpreter in a directory that only root can enter; it finds the system's library all the same."""
    has_all = [str(SYSTEM), "-c", "import sys, venv, ensurepip; assert sys.version_info >= (3, 11)"]
    if subprocess.run(has_all, capture_output=True, check=False).returncode:
        pytest.skip(f"{SYSTEM} is not there, too old, or without venv")
    folder = tmp_path / "home"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(SYSTEM, folder / "bin" / "python3")
    folder.chmod(0o700)
    return folder / "bin" / "python3"


@pytest.fixture
def checkout() -> Iterator[Path]:
    folder = Path("/var/tmp") / f"guestmark-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        for name in COPIED:
            source = CHECKOUT / name
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_an_interpreter_that_is_open_to_all_is_preferred(closed: Path, checkout: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'root=$0; . "$0/tools/setup.sh"; find_python && echo "$python"', checkout],
        env={"PATH": f"{closed.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = Path(done.stdout.strip())
    assert found == SYSTEM.resolve()
    as_somebody = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        str(found),
        "-c",
        "pass",
    ]
    assert subprocess.run(as_somebody, check=False).returncode == 0


def test_one_that_is_closed_is_taken_when_there_is_no_other(
    closed: Path, checkout: Path, tmp_path: Path
) -> None:
    script = 'root=$0; . "$0/tools/setup.sh"; open_to_all() { return 1; }; find_python && echo "$python"'
    done = subprocess.run(
        ["sh", "-c", script, checkout],
        env={"PATH": f"{closed.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(closed)


def test_another_user_is_told_whose_python_it_is_and_what_helps(closed: Path, checkout: Path) -> None:
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(closed)
    (venv / "pyvenv.cfg").write_text(f"home = {closed.parent}\n")
    (venv / ".guestmark").write_text("set up")
    done = subprocess.run(
        [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            checkout / "guestmark",
            "runs",
        ],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"the Python of this checkout, in {closed.parent}, is closed to this user" in done.stderr
    assert "a checkout of your own" in done.stderr
