"""Root filesystems for another architecture: the distribution's packages, unpacked and not installed, shared read-only.

None of their programs run on this host, and neither do the packages' scripts; `_furnish_root` does the part of the
scripts' work that guests need. Services and users that such scripts would configure do not exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from guestmark.core.architectures import Architecture
from guestmark.core.errors import GuestmarkError
from guestmark.foreign import store
from guestmark.foreign.commands import run_command
from guestmark.foreign.packages import Package, Packages, describe_archives
from guestmark.foreign.progress import Progress

KIND = "root"
EXPECTED_S = 14.0
_TREE, _PACKAGES = "tree", "packages.json"
# Packages that commands may rely on; and packages that workloads run, some of which an architecture may not have.
BASE = (
    "base-files", "base-passwd", "bash", "coreutils", "dash", "diffutils", "e2fsprogs", "findutils", "grep", "gzip",
    "hostname", "libc-bin", "mawk", "mount", "ncurses-base", "procps", "sed", "tar", "util-linux",
)  # fmt: skip
USUAL = ("sysbench",)
# Links into /usr, which Debian's installer creates, not a package.
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ALTERNATIVES = {"usr/bin/awk": "mawk", "usr/bin/which": "which.debianutils", "usr/bin/sh": "dash"}


@dataclass(frozen=True, slots=True)
class Root:
    """A root filesystem: its directory, and the packages in it by name."""

    path: Path
    packages: Mapping[str, Package]


def find_root(architecture: Architecture, packages: Iterable[str] = ()) -> Root | None:
    """Returns the root with these packages, and the usual ones; None if it has not been built."""
    part = store.find_part(architecture, KIND, compute_key(architecture, packages))
    return None if part is None else _read_root(part)


def compute_key(architecture: Architecture, packages: Iterable[str]) -> str:
    """Returns a key that changes with the requested packages."""
    return store.hash_inputs([architecture.name, BASE, USUAL, sorted(set(packages) - {*BASE, *USUAL})])


def make_root(architecture: Architecture, packages: Iterable[str], progress: Progress) -> Root:
    """Downloads the packages with all their dependencies and unpacks them.

    Raises `GuestmarkError` naming a package that does not exist.
    """
    wanted = sorted(set(packages) - {*BASE, *USUAL})
    with store.make_part(architecture, KIND, compute_key(architecture, packages), progress) as making:
        source = Packages(architecture, progress)
        source.refresh_lists(making.log)
        for name in (*BASE, *wanted):
            if not source.has_package(name):
                raise GuestmarkError(
                    f"the distribution has no package {name} for {architecture.name}",
                    hint="run another program there, or choose another architecture: guestmark doctor --arch",
                )
        usual = [name for name in USUAL if source.has_package(name)]
        archives = source.download_packages((*BASE, *usual, *wanted), making.scratch / "archives", making.log)
        tree = making.path / _TREE
        for name in _MERGED:
            (tree / "usr" / name).mkdir(parents=True)
            (tree / name).symlink_to(f"usr/{name}")
        # `dpkg-deb -x` would replace the links into /usr with directories; tar keeps them.
        script = 'tree=$1; shift; for file; do dpkg-deb --fsys-tarfile "$file" | tar -x -C "$tree" ' + (
            "--keep-directory-symlink --no-same-owner --delay-directory-restore || exit 1; done"
        )
        run_command(
            ["sh", "-ec", script, "sh", str(tree), *map(str, archives)],
            f"unpacking {len(archives)} packages for {architecture.name}",
            log=making.log, progress=progress, cwd=making.scratch, expected_s=10,
        )  # fmt: skip
        _furnish_root(tree)
        found = describe_archives(archives)
        listed = {name: asdict(package) for name, package in sorted(found.items())}
        (making.path / _PACKAGES).write_text(json.dumps(listed, indent=1) + "\n")
        versions = {name: package.version for name, package in sorted(found.items())}
        return _read_root(making.complete(versions, (_PACKAGES,)))


def _read_root(part: Path) -> Root:
    listed = json.loads((part / _PACKAGES).read_text())
    return Root(part / _TREE, {name: Package(**package) for name, package in listed.items()})


def _furnish_root(tree: Path) -> None:
    """Creates those files of package scripts that programs need without services."""
    for name in ("passwd", "group"):
        shutil.copyfile(tree / f"usr/share/base-passwd/{name}.master", tree / "etc" / name)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(tree / "usr/share/libc-bin/nsswitch.conf", tree / "etc/nsswitch.conf")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost guestmark\n::1 localhost\n")
    (tree / "etc/hostname").write_text("guestmark\n")
    for link, target in _ALTERNATIVES.items():
        if not os.path.lexists(tree / link) and (tree / link).with_name(target).exists():
            (tree / link).symlink_to(target)
    for name in ("dev", "proc", "sys", "run", "tmp", "root", "home", "mnt", "var/tmp", "var/log", "var/lib"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (tree / name).chmod(0o1777)
