"""An appliance is as old as the packages that it was built from, whatever was installed meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from guestmark.platforms import libguestfs

# Builds what supermin leaves, and notes that; somebody installs a package while the last part is written.
_GUESTFISH = """#!/bin/sh
cd "$LIBGUESTFS_CACHEDIR" && mkdir -p .guestfs-{user}/appliance.d && cd .guestfs-{user}/appliance.d
echo x >> ../../built
touch kernel initrd; sleep 0.05; {meanwhile}; touch root
"""


def _appliance(folder: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str) -> tuple[Path, Path]:
    programs, home, packages = folder / "programs", folder / "home", folder / "home" / "status"
    programs.mkdir()
    home.mkdir()
    packages.touch()
    os.utime(packages, (1, 1))
    program = programs / "guestfish"
    program.write_text(_GUESTFISH.format(user=os.geteuid(), meanwhile=meanwhile.format(packages=packages)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setattr(libguestfs, "_PACKAGE_DATABASES", (str(packages),))
    return home, packages


def _built(home: Path) -> int:
    libguestfs._build_appliance(home, {"LIBGUESTFS_CACHEDIR": str(home)})
    return len((home / "built").read_text().split())


def test_packages_that_are_installed_meanwhile_make_it_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = _appliance(tmp_path, monkeypatch, "touch {packages}")
    assert (_built(home), _built(home)) == (1, 2)


def test_one_that_is_newer_than_all_packages_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, packages = _appliance(tmp_path, monkeypatch, "true")
    assert (_built(home), _built(home)) == (1, 1)
    later = time.time() + 5
    os.utime(packages, (later, later))
    assert _built(home) == 2
