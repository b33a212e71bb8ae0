"""Temporary things: made in one place, named to the keeper first, and gone however a process ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guestmark.core.temporary import open_unnamed_file, replace_file, scratch_directory
from tests.framework import PACKAGES
from tests.framework.processes import children, wait_until

_PACKAGE = PACKAGES / "guestmark"
_PLACES = {"core/temporary.py", "core/keeper.py"}
_MAKERS = re.compile(
    # `$(mktemp …)` is a program's in a machine.
    r"\bmkdtemp\b|\bmkstemp\b|(?<!\$\()\bmktemp\b|\b(?:Named|Spooled)?TemporaryFile\b|\bTemporaryDirectory\b"
    r"|with_(?:name|suffix|stem)\([^)\n]*(?:getpid|get_ident|token_|uuid|\.part\b|\.tmp\b)"
    r"|(?:getpid|get_ident)\(\)[^\n]*\.(?:part|tmp)\b"
)


def test_nothing_else_makes_temporary_things() -> None:
    found = {
        f"{file.relative_to(_PACKAGE)}: {line.strip()}"
        for file in _PACKAGE.rglob("*.py")
        if str(file.relative_to(_PACKAGE)) not in _PLACES
        for line in file.read_text().splitlines()
        if _MAKERS.search(line)
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        'path = tempfile.mkdtemp(prefix="guestmark-trial-")',
        "with tempfile.TemporaryDirectory() as scratch:",
        'part = target.with_name(f"{target.name}.{os.getpid()}")',
        'part = self._path.with_suffix(".part")',
        'part = directory / f"{target.name}.{os.getpid()}.part"',
    ],
)
def test_the_search_finds_what_was_there(line: str) -> None:
    assert _MAKERS.search(line)


_BODY = {
    "scratch_directory": 'with scratch_directory("x", here) as made: (made / "file").write_text("x"); wait()',
    "replacing": 'with replace_file(here / "target") as part: part.write_text("half"); wait()',
    "unnamed_file": "with open_unnamed_file() as file: file.write(b'x'); wait()",
}


@pytest.mark.parametrize("how", _BODY)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_stays_of_a_process_that_is_killed(tmp_path: Path, how: str, number: int) -> None:
    (tmp_path / "target").write_text("before")
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from guestmark.core.temporary import open_unnamed_file, replace_file, scratch_directory\n"
        "here = Path(sys.argv[1])\n"
        "def wait(): print('made', flush=True); time.sleep(60)\n" + _BODY[how]
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        process.send_signal(number)
        process.wait()
    assert wait_until(lambda: [path.name for path in tmp_path.iterdir()] == ["target"], 5)
    assert (tmp_path / "target").read_text() == "before"


def test_what_is_made_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with replace_file(target, 0o640) as part:
        part.write_text("new")
        assert part.parent == tmp_path
    assert target.read_text() == "new"
    with pytest.raises(UnicodeEncodeError), replace_file(target) as part:
        part.write_text("\ud800", encoding="utf-8")
    with scratch_directory("x", tmp_path) as made:
        assert made.stat().st_mode & 0o777 == 0o700
    with open_unnamed_file() as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert target.read_text() == "new"


@pytest.mark.parametrize("supervisors", [1, 2])
def test_supervisors_remove_what_a_keeper_would_have_if_both_of_its_processes_are_killed(
    tmp_path: Path, supervisors: int
) -> None:
    """With whoever made it; a keeper that is killed alone is replaced, and supervisors leave everything to it."""
    code = (
        "import os, subprocess, sys, time\nfrom pathlib import Path\n"
        "from guestmark.agent.binary import start_host_agent, build_supervise_command\n"
        "from guestmark.core.keeper import keeper\n"
        "made = keeper().directory('tcg', sys.argv[1]); (made / 'file').write_text('x')\n"
        "gone = keeper().directory('uml', sys.argv[1]); keeper().remove(gone)\n"
        "lifeline, ours = os.pipe()\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    subprocess.Popen(build_supervise_command(['sleep', '60'], lifeline_fd=lifeline, hold=keeper().handles),\n"
        "        pass_fds=(lifeline, *keeper().handles), start_new_session=True)\n"
        "agent = start_host_agent(hold=keeper().handles)\n"
        "later = keeper().directory('later', sys.argv[1])\n"
        "print(keeper()._process.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(supervisors)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        keeper = int(process.stdout.readline())
        assert wait_until(lambda: len(children(keeper)) == 1, 5)
        second = children(keeper)[0]
        started = [pid for pid in children(process.pid) if pid != keeper]
        assert len(list(tmp_path.iterdir())) == 2
        for pid in (process.pid, keeper, second):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert wait_until(lambda: not list(tmp_path.iterdir()), 30), list(tmp_path.iterdir())
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 5)


def test_a_keeper_that_is_killed_alone_costs_nothing(tmp_path: Path) -> None:
    """The controller goes on using what it has: a supervisor that ends meanwhile removes none of it."""
    code = (
        "import os, subprocess, sys, time\n"
        "from guestmark.agent.binary import build_supervise_command\n"
        "from guestmark.core.keeper import keeper\n"
        "made = keeper().directory('tcg', sys.argv[1])\n"
        "lifeline, ours = os.pipe()\n"
        "command = build_supervise_command(['sleep', '60'], lifeline_fd=lifeline, hold=keeper().handles)\n"
        "one = subprocess.Popen(command,\n"
        "    pass_fds=(lifeline, *keeper().handles), start_new_session=True)\n"
        "print(keeper()._process.pid, flush=True); sys.stdin.readline()\n"
        "os.close(ours); one.wait(); print(made.exists(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        keeper = int(process.stdout.readline())
        assert wait_until(lambda: len(children(keeper)) == 1, 5)
        for pid in (*children(keeper), keeper):
            os.kill(pid, signal.SIGKILL)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"True\n"


_MAKER = (
    "import sys, time\nfrom pathlib import Path\n"
    "from guestmark.core.temporary import replace_file, scratch_directory\n"
    "here = Path(sys.argv[1])\n"
    "with scratch_directory('x', here) as made, replace_file(here / 'target') as part:\n"
    "    (made / 'file').write_text('x'); part.write_text('half')\n"
    "    print('made', flush=True); time.sleep(float(sys.argv[2]))\n"
)


def _maker(folder: Path, cache: Path, seconds: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", _MAKER, str(folder), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES), "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
    )


def _keepers(pid: int) -> list[int]:
    found = [child for child in children(pid) if b"\0keep\0" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return [*found, *(second for one in found for second in children(one))]


def test_the_next_keeper_removes_what_nobody_is_left_for(tmp_path: Path) -> None:
    """A process is killed with both of its keepers, and nobody supervised anything: the next one finds their names."""
    folder, cache = tmp_path / "work", tmp_path / "cache"
    folder.mkdir()
    records = cache / "guestmark/keepers" / os.uname().nodename
    with _maker(folder, cache, 60) as first, _maker(folder, cache, 60) as living:
        for process in (first, living):
            assert process.stdout is not None
            assert process.stdout.readline() == b"made\n"
        keepers = _keepers(first.pid)
        assert len(keepers) == 2
        for sent in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none can act on the end of another
            for pid in (*keepers, first.pid):
                os.kill(pid, sent)
        first.wait()
        time.sleep(1.5)
        assert len(list(folder.iterdir())) == 4
        with _maker(folder, cache, 0) as third:
            third.wait()
        # What the living one has made stays.
        assert wait_until(lambda: len(list(folder.iterdir())) == 3, 5), list(folder.iterdir())
        assert living.poll() is None
        living.kill()
    assert wait_until(lambda: [path.name for path in folder.iterdir()] == ["target"], 5)
    assert wait_until(lambda: not list(records.iterdir()), 5)


def test_where_nothing_can_be_kept_in_the_cache_nothing_is(tmp_path: Path) -> None:
    folder, cache = tmp_path / "work", tmp_path / "cache"
    folder.mkdir()
    cache.write_text("a file")
    with _maker(folder, cache, 0) as process:
        assert process.wait() == 0
    assert [path.name for path in folder.iterdir()] == ["target"]
