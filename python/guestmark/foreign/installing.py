"""Installing the distribution's packages that parts are made with, by the installer of set-up (`tools/setup.sh`)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from guestmark.appliance.paths import cache_directory
from guestmark.core.errors import GuestmarkError
from guestmark.core.own_program import checkout
from guestmark.foreign.progress import Progress

ABOUT_S = 40.0
_NO_RIGHT = 2  # what set-up ends with where this user may not install, or the distribution is another
_SCRIPT = 'root=$1 to=$2; shift 2; . "$root/tools/setup.sh" && log=$to && install_named "$@"'
_LOOK_S = 0.2


def install(packages: Sequence[str], progress: Progress) -> bool:
    """Installs them; False where that is not possible: no checkout, no Debian, no root and no sudo.

    apt is never killed, as it stops by itself where it safely can: an interruption waits for it.
    Raises `GuestmarkError` with its own words when it fails.
    """
    root = checkout()
    if not (root / "tools" / "setup.sh").is_file():
        return False
    log = cache_directory() / "foreign" / "install.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    what = "installing packages"
    command = ["/bin/sh", "-c", _SCRIPT, "guestmark", str(root), str(log), *packages]
    begin = time.monotonic()
    said = False
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while True:
            try:
                process.wait(_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if not said:
                    progress.say(f"{what}: {' '.join(packages)}")
                said = True
                progress.step(what, time.monotonic() - begin, ABOUT_S)
    progress.done(what, time.monotonic() - begin)
    if process.returncode not in (0, _NO_RIGHT):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith("E:")]
        reason = (telling[-1:] or lines[-1:] or [f"exit status {process.returncode}"])[0]
        raise GuestmarkError(
            f"{' '.join(packages)} cannot be installed: {reason[:300]}",
            hint=f"the log: {log}; or as root: apt-get install {' '.join(packages)}",
        )
    return process.returncode == 0
