"""An appliance is as old as the packages that it was built from, whatever was installed meanwhile."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from guestmark.platforms import libguestfs

# Builds what supermin leaves, and notes that; somebody installs a package while the last part is written.
_GUESTFISH = """#!/bin/sh
cd "$LIBGUESTFS_CACHEDIR" && mkdir -p .guestfs-{user}/appliance.d && cd .guestfs-{user}/appliance.d
echo x >> ../../built
touch kernel initrd; sleep 0.05
{meanwhile}
touch root
"""

# libguestfs caches that KVM does not work, and then launches nothing that is forced to use it.
_WITHOUT_KVM = """\
echo '{{"return": {{"enabled": false, "present": true}}}}' >../qemu-18397984-1779741869.query-kvm
[ "$LIBGUESTFS_BACKEND_SETTINGS" != force_kvm ] || exit 1
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


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_a_cached_answer_without_kvm_keeps_no_launch_from_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accelerator: str
) -> None:
    """The appliance is built without /dev/kvm, for whichever is used first; an outer guest reads its host's cache."""
    home, _ = _appliance(tmp_path, monkeypatch, _WITHOUT_KVM)
    monkeypatch.setattr(libguestfs, "locate_cache", lambda: home)
    monkeypatch.setattr(libguestfs, "_build_kernel_environment", lambda _: {})
    monkeypatch.setattr(shutil, "which", lambda program: program)
    assert libguestfs.prepare(accelerator)["LIBGUESTFS_BACKEND_SETTINGS"] == f"force_{accelerator}"
    answer = home / "libguestfs" / f".guestfs-{os.geteuid()}" / "qemu-18397984-1779741869.query-kvm"
    assert answer.read_text() == '{"return": {"enabled": true, "present": true}}\n'
