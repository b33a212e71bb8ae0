"""Runs the programs that build parts, reports their progress, and ends them when guestmark ends.

`tools/setup.sh` installs the packages of these programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from guestmark.agent.binary import build_supervise_command
from guestmark.appliance.paths import locate_cache
from guestmark.core.errors import GuestmarkError
from guestmark.core.keeper import keeper
from guestmark.core.own_program import find_checkout
from guestmark.foreign.progress import Progress
from guestmark.page.text import list_filled_lines

_POLL_S = 0.2
_TELL_S = 1.0
INSTALLING_EXPECTED_S = 40.0
# Exit status of `tools/setup.sh` if this user may not install packages, or the distribution is not supported.
_CANNOT_INSTALL = 2
_APT_LOCK = Path("/var/lib/apt/lists/lock")
_SCRIPT = 'root=$1 to=$2; shift 2; . "$root/tools/setup.sh" && log=$to && install_named "$@"'


def run_command(
    command: Sequence[str],
    what: str,
    *,
    log: Path,
    progress: Progress,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    expected_s: float | None = None,
) -> None:
    """Runs a command to its end and appends its output to `log`, which is kept if the command fails.

    Raises `GuestmarkError` with the first line that looks like an error message.
    """
    lifeline, ours = os.pipe()
    held = keeper().handles
    begin = time.monotonic()
    with log.open("ab") as output:
        output.write(f"==== {what}\n".encode())
        output.flush()
        try:
            process = subprocess.Popen(
                build_supervise_command(command, lifeline_fd=lifeline, hold=held),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline, *held),
                cwd=cwd,
                env={**os.environ, **(env or {}), "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            os.close(ours)
            raise GuestmarkError(f"{command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(lifeline)
    try:
        _await_exit(process, what, begin, expected_s, progress)
    finally:
        # After an interruption, this ends all processes that still run.
        os.close(ours)
        process.wait()
    progress.done(what, time.monotonic() - begin)
    if process.returncode:
        raise GuestmarkError(
            f"{what} failed: {_find_reason(log, process.returncode)}", hint=f"see the log: {log}"
        )


def _await_exit(
    process: subprocess.Popen[bytes], what: str, begin: float, expected_s: float | None, progress: Progress
) -> None:
    reported = begin
    while True:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            progress.check_cancelled()
            now = time.monotonic()
            if now - reported >= _TELL_S:
                reported = now
                progress.show_elapsed(what, now - begin, expected_s)
        else:
            return


def _find_reason(log: Path, status: int) -> str:
    output = log.read_text(errors="replace").rpartition("\n==== ")[2]
    lines = list_filled_lines(output)
    telling = [line for line in lines if line.lower().startswith(("error", "e:")) or "error:" in line.lower()]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if telling:
        following = lines[lines.index(telling[0]) + 1 :]
        # rustc names the place of an error in the next line.
        if following and following[0].startswith("--> "):
            return f"{telling[0]} ({following[0].removeprefix('--> ')})"[:300]
    # Later errors are mostly consequences of the first; make's own lines only report that there was one.
    others = [line for line in lines if not line.startswith(("make:", "make["))]
    return (telling[:1] or others[-1:] or lines[-1:] or [f"exit status {status}"])[0][:300]


@contextlib.contextmanager
def _wait_for_others(progress: Progress) -> Iterator[None]:
    """Lets one installation of guestmark's run at a time on this machine: apt does not wait to fetch its lists.

    The lock on apt's own file is another one than apt takes, and only root can open it.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = stack.enter_context(_APT_LOCK.open("rb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.say("waiting until another guestmark has installed its packages")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_packages(packages: Sequence[str], progress: Progress) -> bool:
    """Installs packages; returns False without a checkout, on other distributions than Debian, or without root or sudo.

    apt is never killed, because it stops by itself when that is safe, so an interruption waits for it. Raises
    `GuestmarkError` with apt's message if it fails.
    """
    root = find_checkout()
    if not (root / "tools" / "setup.sh").is_file():
        return False
    log = locate_cache() / "foreign" / "install.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    what = "installing packages"
    command = ["/bin/sh", "-c", _SCRIPT, "guestmark", str(root), str(log), *packages]
    begin = time.monotonic()
    announced = False
    with (
        _wait_for_others(progress),
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
    ):
        while True:
            try:
                process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                if not announced:
                    progress.say(f"{what}: {' '.join(packages)}")
                announced = True
                progress.show_elapsed(what, time.monotonic() - begin, INSTALLING_EXPECTED_S)
    progress.done(what, time.monotonic() - begin)
    if process.returncode not in (0, _CANNOT_INSTALL):
        lines = list_filled_lines(log.read_text(errors="replace"))
        telling = [line for line in lines if line.startswith("E:")]
        reason = (telling[-1:] or lines[-1:] or [f"exit status {process.returncode}"])[0]
        raise GuestmarkError(
            f"{' '.join(packages)} cannot be installed: {reason[:300]}",
            hint=f"see the log: {log}; or as root: apt-get install {' '.join(packages)}",
        )
    return process.returncode == 0
