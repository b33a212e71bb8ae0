"""What looks at other processes bears that they end at any moment."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.framework.command_line import CommandLine

# Each has threads, children and open files, and lives for a few milliseconds.
_SHORT = """
import os, subprocess, threading
while True:
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)] + list(os.pipe())
    threads = [threading.Thread(target=lambda: None) for _ in range(4)]
    for thread in threads: thread.start()
    children = [subprocess.Popen(["sh", "-c", "exec 7</dev/null 8</dev/null; :"]) for _ in range(4)]
    for child in children: child.wait()
    for descriptor in held: os.close(descriptor)
"""


@pytest.fixture
def short_lived() -> Iterator[None]:
    """Processes that come and go as fast as this machine lets them."""
    with contextlib.ExitStack() as ending:
        makers = [
            ending.enter_context(subprocess.Popen([sys.executable, "-c", _SHORT], start_new_session=True))
            for _ in range(3)
        ]
        for maker in makers:
            ending.callback(os.killpg, maker.pid, 9)
        yield


# Ends a process at the very moment at which one of its files is opened or one of its directories is listed.
_ENDED_WHILE_LOOKED_AT = """
import contextlib, os, subprocess, sys
from guestmark.core import procfs
from guestmark.disks import processes, stack
from guestmark.engine import leftovers

name, looks = sys.argv[1], {
    "orphans": leftovers.find_orphans,
    "written pipes": leftovers._list_written_pipes,
    "paths in use": leftovers._read_paths_in_use,
    "descendants": lambda: processes.list_descendants(victim.pid),
    "threads": lambda: processes.map_threads(victim.pid),
    "cages": lambda: list(processes.find_sandboxed_processes(1, "guestmark")),
    "mounts": lambda: stack._find_mount_of_device("999:999"),
    "open files": lambda: list(procfs.list_open_files(victim.pid)),
}
victim, ended = None, 0

def end(event, arguments):
    global ended
    if event in ("open", "os.scandir", "os.listdir") and victim and victim.returncode is None:
        path = arguments[0]
        if str(path).startswith(f"/proc/{victim.pid}/") and str(path).endswith("/" + name):
            victim.kill()
            victim.wait()
            ended += 1

sys.addaudithook(end)
for what, look in looks.items():
    command = ["sh", "-c", "sleep 60 & exec sleep 60"]
    victim = subprocess.Popen(command, stdout=-3, stderr=-3, start_new_session=True)
    try:
        look()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(victim.pid, 9)
        victim.wait()
print(ended)
"""


@pytest.mark.parametrize("name", ["fd", "task", "children", "stat", "status", "cmdline", "mountinfo"])
def test_a_process_may_end_while_it_is_looked_at(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDED_WHILE_LOOKED_AT, name],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0 or name == "mountinfo"


@pytest.mark.long
@pytest.mark.usefixtures("short_lived")
def test_clean_and_doctor_beside_processes_that_end(guestmark: CommandLine) -> None:
    said: list[str] = []

    def ask(*words: str) -> None:
        for _ in range(2):
            done = guestmark(*words, timeout=120)
            said.append(f"{words}: {done.status} {done.stderr}")

    asking = [threading.Thread(target=ask, args=words) for words in (("clean",), ("doctor", "--json"))]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(said) == 4
    assert not [each for each in said if "Error" in each or "bug" in each], said
