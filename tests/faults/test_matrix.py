"""Every kind of kernel, user and place together: guests run, or what is missing is said; the host stays as it was."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guestmark.appliance.kernel import find_kernel
from guestmark.core.own_program import find_agent_binary
from guestmark.platforms.qemu.programs import VIRTIOFSD_PATHS
from tests.framework import PACKAGES
from tests.framework.kernels import cloud, without_9p
from tests.framework.marks import thorough

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="becomes another user and mounts, which takes root"),
]
OTHER = 4242
NEW_DAEMON = any(
    os.access(daemon, os.X_OK) for daemon in VIRTIOFSD_PATHS if daemon != "/usr/lib/qemu/virtiofsd"
)


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A directory that every user can enter, with kernels of all kinds in it."""
    with tempfile.TemporaryDirectory(prefix="guestmark-test-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for kind in ("generic", "none", "cloud"):
            (folder / kind).mkdir()
        usual = find_kernel()
        assert usual.modules is not None
        (folder / "generic" / f"vmlinuz-{usual.release}").write_bytes(usual.image.read_bytes())
        # Copies: the cache of this user may be closed to others.
        shutil.copytree(usual.modules, folder / "generic" / "modules", symlinks=False)
        without_9p(folder / "none", of=folder / "generic")
        shutil.copy(find_agent_binary(), folder / "agent")
        yield folder


def kernel_in(folder: Path) -> Path:
    """The image there; the cloud kernel is fetched when it is wanted first."""
    if not any(folder.iterdir()):
        cloud(folder)
    return next(path for path in [*folder.glob("vmlinuz-*"), *folder.glob("boot/vmlinuz-*")])


@dataclass
class Place:
    """Where a run's files are, and what its environment says."""

    folder: Path
    environment: dict[str, str]


@contextlib.contextmanager
def place(kind: str, public: Path, user: int) -> Iterator[Place]:
    """A folder of that user's, of that kind."""
    name = "Größe, mit Leerzeichen=日本 'x'" if kind == "odd path" else kind.replace(" ", "-")
    folder = public / f"{name}-{user}"
    folder.mkdir()
    mounted: list[Path] = []
    try:
        if kind == "30 MB disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "none", folder], check=True)
            mounted.append(folder)
        os.chown(folder, user, user)
        folder.chmod(0o700)
        home = folder / "home"
        home.mkdir()
        os.chown(home, user, user)
        environment = {"HOME": str(home)}
        if kind == "read-only home":
            subprocess.run(["mount", "--bind", "-o", "ro", home, home], check=True)
            mounted.append(home)
        if kind == "no home":
            environment = {}
        yield Place(folder, environment)
    finally:
        for path in reversed(mounted):
            subprocess.run(["umount", "--lazy", path], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def python_for(user: int) -> tuple[str, str]:
    """A Python that the user may execute, with where it finds what guestmark needs."""
    own = sysconfig.get_paths()["purelib"]
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    code = "import sys, msgspec, pydantic, sqlalchemy; print(sys.version_info[:2])"
    for program in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run(
            [*become, program, "-c", code], env={"PYTHONPATH": own}, capture_output=True, check=False, cwd="/"
        )
        if done.returncode == 0:
            return program, own
    pytest.skip("no Python here can be executed by other users with what guestmark needs")


def list_cases() -> list[Any]:
    """All combinations; half of them have every pair of a kernel, a user and a place, the others are thorough."""
    kinds = enumerate(("generic", "none", "cloud"))
    places = enumerate(("30 MB disk", "odd path", "no home", "read-only home"))
    users = enumerate((0, OTHER))
    cases = []
    for (row, kind), (column, where), (layer, user) in itertools.product(kinds, places, users):
        has_pairs = (row + column + layer) % 2 == 0
        case = (kind, user, where)
        cases.append(case if has_pairs else thorough(*case))
    return cases


@pytest.mark.parametrize(("kind", "user", "where"), list_cases())
def test_guests_run_or_what_is_missing_is_said(public: Path, kind: str, user: int, where: str) -> None:
    python, own = python_for(user)
    kernel = kernel_in(public / kind)
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    with place(where, public, user) as at:
        ledger, document = at.folder / "ledger.sqlite", at.folder / "result.json"
        done = subprocess.run(
            [*become, python, "-m", "guestmark", "exec", "--quiet", "--blocks", "1", "--null", "none", "--on",
             "host,tcg", "--set", f"kernel={kernel}", "--ledger", ledger, "--json", document, "--", "true"],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{PACKAGES}:{own}", "TMPDIR": str(at.folder),
                 "GUESTMARK_AGENT": str(public / "agent"), **at.environment},
            cwd=at.folder, capture_output=True, text=True, timeout=280, check=False, umask=0o077,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert "sorry, this is a bug" not in done.stderr
        assert document.exists(), done.stderr
        trials = {
            cell["id"]: [trial["status"] for trial in cell["trials"]]
            for cell in json.loads(document.read_text())["cells"]
        }
        tcg = [statuses for cell, statuses in trials.items() if cell.startswith("tcg")]
        assert all(statuses == ["ok"] for cell, statuses in trials.items() if not cell.startswith("tcg")), (
            trials
        )
        if where == "30 MB disk":  # a kernel is unpacked to more
            assert tcg in ([], [[]]), trials
            assert "No space left on device" in " ".join(done.stdout.split())
        elif kind == "generic" or user == 0 or NEW_DAEMON:
            assert tcg == [["ok"]], done.stderr
        else:
            assert tcg in ([], [[]]), trials
            assert "no 9p" in " ".join((done.stdout + done.stderr).split())
        left = {path.name for path in at.folder.iterdir() if path.name.startswith("guestmark-")}
        assert left <= {f"guestmark-cache-{user}"}
