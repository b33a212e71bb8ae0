"""Caches for calls of guestmark: expensive contents are shared, findings that decide a test's result are not."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.paths import locate_cache
from tests.framework import IMPORTABLE

_SHARED = ("databases", "disks", "foreign", "initramfs", "kernels", "libguestfs")
_FINDINGS = "probes.json"
_TRY = """
import sys
from guestmark.platforms import registry
from guestmark.platforms.probe import probe_all
for name, found in probe_all([registry.get_platform(name) for name in sys.argv[1:]]).items():
    print(name, found, file=sys.stderr)
"""


def private_cache(folder: Path) -> Path:
    """Create a cache at `folder` with the user's images and kernels, but without findings about platforms.

    Those findings are one small file, which another test, user or checkout may replace at any moment.
    """
    own = folder / "guestmark"
    own.mkdir(parents=True)
    for name in _SHARED:
        (locate_cache() / name).mkdir(exist_ok=True)
        (own / name).symlink_to(locate_cache() / name)
    return folder


@dataclass(frozen=True)
class TriedPlatforms:
    """Findings about platforms, made once for all processes of a test run that share `folder`."""

    folder: Path

    def copy_to(self, cache: Path, platforms: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Copy the findings about these platforms into a private cache; each platform is tried once in a run."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            home = self.folder / "cache"
            if not home.exists():
                private_cache(home)
            log = self.folder / "-".join(platforms).replace("/", ".")
            if not log.exists():
                tried = subprocess.run(
                    [sys.executable, "-c", _TRY, *platforms],
                    env={**os.environ, **environment, "XDG_CACHE_HOME": str(home), "PYTHONPATH": IMPORTABLE},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=240,
                    check=True,
                )
                log.write_text(tried.stderr)
            shutil.copy(home / "guestmark" / _FINDINGS, cache / "guestmark" / _FINDINGS)
