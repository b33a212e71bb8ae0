"""A check is somebody's script: it has a world of its own, is tried first, is repeated when it fails, and is heard."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.powercut import checks

from guestmark.core.errors import ExitStatus, GateStatus
from guestmark.disks import loop
from guestmark.powercut import check_proof, evidence, user_check
from guestmark.powercut.check_answer import Ending
from tests.framework.checked_programs import Programs
from tests.framework.command_line import CommandLine, Result
from tests.framework.marks import long
from tests.framework.processes import wait_until

pytestmark = [
    pytest.mark.skipif(bool(loop.explain_no_loop()), reason="images cannot be mounted here"),
    pytest.mark.timeout(600),
]
HERE = ("powercut", "--on", "host", "--states", "10")


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    folder = tmp_path / "programs"
    folder.mkdir()
    return Programs(folder)


def proof(done: Result) -> dict[str, Any]:
    """What a run has found of its only cell, of which `--json -` was asked."""
    (cell,) = done.document()["cells"]
    (trial,) = cell["trials"]
    found: dict[str, Any] = trial["attestation"]["proof"]
    return found


ALONE = f"guestmark-test-{os.getpid()}"
# The server that is asked stops with the check only, and a second one on the same port is refused.
_SERVED = """
import socket, sys, time
{check}
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 47113))
server.listen()
open("/tmp/{alone}", "x")
time.sleep(0.2)
socket.create_connection(("127.0.0.1", 47113)).close()
"""


def test_checks_on_one_port_do_not_disturb_each_other(guestmark: CommandLine, programs: Programs) -> None:
    text = Path(programs.check.rsplit(" ", 1)[1]).read_text()
    check = programs.script("served.py", _SERVED.format(check=text, alone=ALONE))
    found = proof(
        guestmark(*HERE, "--json", "-", "--check", check, "--", *programs.writer("safe"), timeout=250)
    )
    assert (found["word"], found["losing"]) == ("proven", 0), found
    assert not Path(f"/tmp/{ALONE}").exists()


def test_what_is_lost_is_said_in_the_words_of_the_check(guestmark: CommandLine, programs: Programs) -> None:
    """In the report, the JSON, JUnit and the replay, which opens the disk again."""
    junit = programs.folder / "junit.xml"
    check, writer = programs.check, programs.writer("careless")
    done = guestmark(
        *HERE, "--json", programs.folder / "run.json", "--fail-if", "lost", "--junit", junit, "--check", check, "--",
        *writer, timeout=250,
    )  # fmt: skip
    assert done.status == GateStatus.BROKEN
    assert "states: 0 is missing" in done.stdout
    (cell,) = json.loads((programs.folder / "run.json").read_text())["cells"]
    assert cell["id"] == "host"
    (failure,) = ElementTree.parse(junit).getroot().iter("failure")
    assert "0 is missing" in failure.get("message", "") + (failure.text or "")
    shown = guestmark("show", "--json", "-")
    found = proof(shown)
    (reason,) = found["reasons"]
    assert (reason["states"], reason["status"], reason["out"]) == (found["losing"], 1, ["it holds 0"])
    assert reason["err"] == ["0 is missing"]
    log, after = found["kept"].rpartition("/")[2], str(reason["after"])
    seen = guestmark("powercut", "replay", log, "--after", after).stdout
    assert "out: it holds 0" in seen
    assert "err: 0 is missing" in seen
    again = guestmark("powercut", "replay", log, "--after", after, "--rerun", timeout=200).stdout
    assert "the check failed, exit status 1" in again
    assert "err: 0 is missing" in again
    shell = subprocess.run(
        [sys.executable, "-m", "guestmark", "powercut", "replay", log, "--after", after, "--shell"],
        input='ls; sh -c "$CHECK" < "$ACKNOWLEDGED"; touch /etc/new; exit 7\n', env=guestmark.environment,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert shell.returncode == 7
    assert "data" in shell.stdout
    assert "0 is missing" in shell.stderr
    assert not Path("/etc/new").exists()
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if "guestmark-replay" in line]


_BY_CHANCE = """
[ $(($(od -An -N2 -tu2 /dev/urandom) % {of})) -ne 0 ] || {{ echo "by chance" >&2; exit 1; }}
exec {check}
"""


def test_a_check_that_fails_by_chance_says_nothing_of_the_program(
    guestmark: CommandLine, programs: Programs
) -> None:
    check = programs.shell("chance.sh", _BY_CHANCE.format(check=programs.check, of=8))
    # With nothing cut it may fail by chance, too, which ends the run; and it may pass everywhere.
    for _ in range(12):
        done = guestmark(*HERE, "--json", "-", "--check", check, "--", *programs.writer("safe"), timeout=250)
        if done.status != ExitStatus.ALL_MEASURED:
            assert "the check fails even without a power cut (exit status 1): by chance" in done.stderr
            continue
        found = proof(done)
        if found["word"] != "proven":
            break
    assert found["word"] == "unknown"
    assert "the check gives inconsistent results" in found["why"]
    assert "by chance" in found["why"]
    assert "again" not in found


@pytest.mark.long
def test_a_check_that_takes_too_long_is_no_loss(guestmark: CommandLine, programs: Programs) -> None:
    slow = programs.shell(
        "slow.sh",
        f"cat > /tmp/told; [ $(wc -l < /tmp/told) -ne 3 ] || sleep 60; {programs.check} < /tmp/told",
    )
    begin = time.monotonic()
    done = guestmark(
        *HERE,
        "--json",
        "-",
        "--check-limit",
        "2s",
        "--check",
        slow,
        "--",
        *programs.writer("safe"),
        timeout=250,
    )
    found = proof(done)
    assert (found["word"], found["losing"]) == ("unknown", 0), found
    assert found["unjudged"] > 0
    assert "could not be judged: it did not finish within 2 s" in found["why"]
    assert found["states"] > 20  # the others were
    assert time.monotonic() - begin < 100


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("kill -9 $$", "it was killed ("),
        ("sh -c 'kill -9 $$'; exit $?", "it was killed (exit status 137)"),
        long("ulimit -t 1; while :; do :; done", "it was killed (", name="its own limit of time"),
        (
            "ulimit -f 1; dd if=/dev/zero of=/tmp/large bs=1M count=1; exit $?",
            "it was killed (exit status 153)",
        ),
    ],
    ids=["killed", "a part killed", None, "its own limit of size"],
)
def test_a_check_that_is_killed_is_no_loss(
    guestmark: CommandLine, programs: Programs, end: str, said: str
) -> None:
    killed = programs.shell(
        "killed.sh",
        f"cat > /tmp/told; if [ $(wc -l < /tmp/told) -eq 3 ]; then {end}; fi; {programs.check} < /tmp/told",
    )
    done = guestmark(*HERE, "--json", "-", "--check", killed, "--", *programs.writer("safe", 4), timeout=250)
    found = proof(done)
    assert (found["word"], found["losing"]) == ("unknown", 0), found
    assert found["unjudged"] > 0
    assert f"could not be judged: {said}" in found["why"]
    assert "find out what kills it" in found["why"]


_GROUPS = Path("/sys/fs/cgroup/memory")
_GREEDY = """
import sys
lines = sys.stdin.readlines()
held = bytearray(3 << 30) if len(lines) == 3 else b""
"""


@pytest.mark.long
@pytest.mark.skipif(not os.access(_GROUPS / "cgroup.procs", os.W_OK), reason="no group may be made here")
def test_a_check_that_finds_no_memory_is_no_loss(guestmark: CommandLine, programs: Programs) -> None:
    """The kernel ends it, or only the part of it that takes the memory."""
    group = _GROUPS / ALONE
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(1 << 30))
    greedy = programs.shell(
        "greedy.sh",
        f"cat > /tmp/told; {programs.script('greedy.py', _GREEDY)} < /tmp/told || exit 1; {programs.check} < /tmp/told",
    )
    try:
        done = guestmark(
            *HERE, "--json", "-", "--check", greedy, "--", *programs.writer("safe", 4), timeout=250,
            preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
        )  # fmt: skip
    finally:
        assert wait_until(lambda: not (group / "cgroup.procs").read_text(), 20)
        group.rmdir()
    found = proof(done)
    assert (found["word"], found["losing"]) == ("unknown", 0), found
    assert found["unjudged"] > 0
    assert "could not be judged: the kernel killed some of its processes because" in found["why"]
    assert "free some memory" in found["why"]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("no-such-program", "the check cannot be started: sh: 1: no-such-program: not found"),
        ("echo not today; exit 3", "the check fails even without a power cut (exit status 3): not today"),
        ("/dev/null", "the check cannot be started"),
        (
            "kill -9 $$",
            "the check gives no verdict even without a power cut: it was killed (ended by a signal)",
        ),
        ("kill -SEGV $$", "the check fails even without a power cut (ended by a signal)"),
        ("echo no world; exit 125", "the check cannot be started: no world"),
    ],
)
def test_a_check_that_fails_with_nothing_cut_ends_the_run(
    guestmark: CommandLine, programs: Programs, check: str, said: str
) -> None:
    done = guestmark(*HERE, "--check", check, "--", *programs.writer("safe", 3), timeout=200)
    assert done.status == ExitStatus.NOTHING_MEASURED
    assert said in " ".join(f"{done.stdout} {done.stderr}".split())


def test_a_check_that_never_fails_proves_nothing(guestmark: CommandLine, programs: Programs) -> None:
    done = guestmark(*HERE, "--check", "cat", "--", *programs.writer("careless", 3), timeout=200)
    assert "no proof: the control found no loss with no-flush" in " ".join(done.stdout.split())
    assert "it does not search for each line" in " ".join(done.stdout.split())


def test_lines_on_standard_error_acknowledge_nothing(guestmark: CommandLine, programs: Programs) -> None:
    found = proof(
        guestmark(
            *HERE, "--json", "-", "--check", programs.check, "--", *programs.writer("safe", 5), timeout=200
        )
    )
    assert (found["acknowledged"], found["word"]) == (5, "proven")


_CHATTY = """
import os, sys
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.fsync(os.open(".", os.O_RDONLY))
for number in range(5):
    print("writing", number, flush=True)
    os.write(data, b"%08d\\n" % number)
    os.fsync(data)
    os.write(1, b"safe: %d" % number + (b"" if number == 4 else b"\\n"))
    if number < 4:
        print("that was\\xff".encode("latin-1"), flush=True)
"""


def test_some_lines_of_a_chatty_program_are_acknowledgements(
    guestmark: CommandLine, programs: Programs
) -> None:
    check = programs.shell("safe.sh", f"sed 's/^safe: //' > /tmp/told; {programs.check} < /tmp/told")
    command = (*HERE, "--json", "-", "--check", check)
    chatty = programs.script("chatty.py", _CHATTY).split()
    found = proof(guestmark(*command, "--acknowledge", r"^safe: \d", "--", *chatty, timeout=200))
    assert (found["acknowledged"], found["word"]) == (5, "proven"), found
    nothing = guestmark(*command, "--acknowledge", "^never", "--", *chatty, timeout=200)
    (trial,) = nothing.document()["cells"][0]["trials"]
    assert "printed no line that matches '^never', so nothing was acknowledged" in trial["reason"]
    wrong = guestmark(*command, "--acknowledge", "(", "--", *chatty, timeout=200)
    assert wrong.status == ExitStatus.USAGE
    assert "is not a regular expression" in wrong.stderr


@pytest.mark.long
def test_a_program_that_fails_is_quoted(guestmark: CommandLine, programs: Programs) -> None:
    done = guestmark(
        *HERE,
        "--check",
        "true",
        "--",
        "sh",
        "-c",
        "echo on the way; echo no such thing >&2; exit 4",
        timeout=200,
    )
    assert "sh exited with status 4: no such thing" in done.stderr + done.stdout


_MISBEHAVES = """
cat > /tmp/told
({sleep} & setsid {sleep} &)
echo x > /var/lib/{alone} || true
echo x > "$HOME/{alone}"
{check} < /tmp/told
status=$?
rm -rf ./*
yes "a long line of no use" | head -c 20000000
fallocate -l 1G fills || true
exit $status
"""


def test_a_check_that_misbehaves_leaves_nothing(guestmark: CommandLine, programs: Programs) -> None:
    """It forks, prints much, removes all files, fills the disk and writes to the host's files."""
    sleep = f"sleep 1000.{os.getpid()}"  # as no other run of the tests sleeps
    check = programs.shell("bad.sh", _MISBEHAVES.format(check=programs.check, alone=ALONE, sleep=sleep))
    found = proof(
        guestmark(*HERE, "--json", "-", "--check", check, "--", *programs.writer("careless", 4), timeout=250)
    )
    assert found["word"] == "lost", found
    assert found["reasons"][0]["out"][-1].startswith("a long line")
    outside = (Path("/var/lib", ALONE), Path.home() / ALONE)
    there = [path for path in outside if path.exists()]
    for path in there:
        path.unlink()
    assert not there
    left = subprocess.run(["pgrep", "-fx", sleep], capture_output=True, check=False).stdout
    assert not left


def test_where_there_are_no_namespaces_one_is_judged_after_the_other(
    guestmark: CommandLine, programs: Programs, tmp_path: Path
) -> None:
    from guestmark.core.own_program import find_agent_binary

    agent = tmp_path / "guestmark-agent"
    agent.write_text(
        f'#!/bin/sh\n[ "$1" != world ] || {{ echo "no namespaces here" >&2; exit 125; }}\n'
        f'exec {find_agent_binary()} "$@"\n'
    )
    agent.chmod(0o755)
    done = guestmark(
        *HERE, "--check", programs.check, "--", *programs.writer("safe", 4), env={"GUESTMARK_AGENT": str(agent)},
        timeout=250,
    )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert "host: proven" in said
    assert (
        "states were judged one at a time, because checks would disturb each other: no namespaces here"
        in said
    )


# Both files change together, or the program cannot start again.
_PAIR = """
import os, sys
for number in range(6):
    for name in ("one", "two"):
        if sys.argv[1] == "in-place" and number:
            with open(name, "r+") as file:
                file.write("%d\\n" % number * 2000)
        else:
            with open(name + ".new", "w") as file:
                file.write("%d\\n" % number * 2000)
                file.flush()
                os.fsync(file.fileno())
            os.rename(name + ".new", name)
    os.sync()
"""
_WHOLE = """
import os, sys
for name in ("one", "two"):
    text = open(name).read() if os.path.exists(name) else "0\\n" * 2000
    # Zeroes, which a lost write leaves behind, are no number.
    if set(text) - set("0123456789\\n") or len(set(text.split())) != 1 or len(text) != 4000:
        sys.exit(name + " is torn")
"""


@pytest.mark.parametrize(
    ("how", "word", "said"),
    [("renamed", "consistent", "the check passes on all"), long("in-place", "broken", "is torn")],
)
def test_a_program_that_acknowledges_nothing_has_to_be_whole(
    guestmark: CommandLine, programs: Programs, how: str, word: str, said: str
) -> None:
    program = [*programs.script("pair.py", _PAIR).split(), how]
    check = programs.script("whole.py", _WHOLE)
    done = guestmark(
        "powercut",
        "--on",
        "host",
        "--json",
        "-",
        "--fail-if",
        "lost",
        "--check",
        check,
        "--",
        *program,
        timeout=200,
    )
    found = proof(done)
    assert found["word"] == word, found
    if word == "consistent":  # else what is broken shows by itself that the cuts matter
        assert found["controls"][0]["losing"] > 0
    assert done.status == (GateStatus.KEPT if word == "consistent" else GateStatus.BROKEN)
    assert said in " ".join(guestmark("show").stdout.split())


def test_where_nothing_can_break_it_is_said_that_cuts_never_mattered(
    guestmark: CommandLine, programs: Programs
) -> None:
    done = guestmark(*HERE, "--check", "true", "--", "sh", "-c", "echo something > file; sync", timeout=200)
    said = " ".join(done.stdout.split())
    assert "consistent" in said
    assert "the cuts never mattered: even reordered and torn writes without flushes break nothing" in said


def test_a_full_disk_is_said_at_once(guestmark: CommandLine, programs: Programs) -> None:
    """Though the program itself says nothing, and waits."""
    program = "echo 1; dd if=/dev/zero of=large bs=1M count=200 2> /dev/null; sleep 100"
    process = guestmark.start(*HERE, "--set", "size=64M", "--check", "true", "--", "sh", "-c", program)
    try:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        said = b""

        def told() -> bool:
            nonlocal said
            said += process.stderr.read() or b"" if process.stderr else b""
            return b"--set size=1G" in said

        assert wait_until(told, 40), said
        assert b"the program's disk is full: its disk of" in said
    finally:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


def test_a_program_that_fills_its_disk_is_told_so_without_a_check_too(guestmark: CommandLine) -> None:
    """Its line about that is not the last one that it prints."""
    program = ("dd", "if=/dev/zero", "of=full", "bs=1M", "count=200", "conv=fsync")
    done = guestmark(*HERE, "--set", "size=64M", "--", *program, timeout=200)
    said = " ".join(done.stdout.split())
    assert "its disk is full: dd: error writing 'full': No space left on device" in said, said
    assert "give it a larger disk: --set size=SIZE" in said


def test_a_program_that_finds_no_room_is_told_what_helps(guestmark: CommandLine) -> None:
    program = "echo 1; fallocate -l 100M log || { echo 'panic: no space left on device' >&2; exit 2; }"
    done = guestmark(*HERE, "--set", "size=64M", "--check", "true", "--", "sh", "-c", program, timeout=200)
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    assert "panic: no space left on device" in said
    assert "--set size=1G" in said
    enough = guestmark(*HERE, "--json", "-", "--check", "true", "--", "sh", "-c", program, timeout=200)
    assert proof(enough)["acknowledged"] == 1  # on a disk of the usual size


@pytest.mark.long
def test_a_budget_is_kept_and_what_was_judged_is_a_fair_sample(
    guestmark: CommandLine, programs: Programs
) -> None:
    slow = programs.shell("slow.sh", f"sleep 0.6; exec {programs.check}")
    begin = time.monotonic()
    done = guestmark(
        "powercut", "--on", "host", "--states", "3000", "--for", "30s", "--json", "-", "--check", slow, "--",
        *programs.writer("safe", 30), timeout=250,
    )  # fmt: skip
    # Nothing is lost, so no time has to be kept for a second log.
    assert 18 < time.monotonic() - begin < 45
    found = proof(done)
    coverage = found["coverage"]
    assert found["word"] == "proven", found
    assert found["stopped"] == "time ran out"
    assert found["states"] >= 20
    # The worst states come first, as far as a busy machine gets.
    assert coverage["worst"] == coverage["acknowledgements"] or coverage["worst"] >= 20
    assert coverage["cuts"] < coverage["requests"]
    assert "crash states were judged, until time ran out" in " ".join(guestmark("show").stdout.split())


@pytest.mark.long
def test_an_interrupted_run_reports_what_it_judged(guestmark: CommandLine, programs: Programs) -> None:
    slow = programs.shell("slow.sh", f"sleep 1; exec {programs.check}")
    process = guestmark.start(
        "powercut", "--on", "host", "--states", "300", "--check", slow, "--", *programs.writer("safe", 60)
    )
    time.sleep(34)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == ExitStatus.INTERRUPTED, err
    said = b" ".join((out + err).split())
    assert b"it was interrupted" in said, said
    assert b"crash states were judged" in said  # as few as a busy machine has judged by then
    assert b"proven" in said or b"unknown" in said
    assert b"judging crash states:" in err  # every half minute, without a terminal
    assert b"left" in err


def test_states_with_the_same_files_are_judged_once(guestmark: CommandLine, programs: Programs) -> None:
    """And the words are those of a check that is run for each."""
    count = programs.folder / "runs"
    found = proof(
        guestmark(
            *HERE, "--json", "-", "--check", programs.check, "--", *programs.writer("safe", 10), timeout=200
        )
    )
    assert found["word"] == "proven"
    assert found["checks"] * 3 < found["states"] + 30, found
    assert not count.exists()


@pytest.mark.long
@pytest.mark.parametrize("filesystem", ["ext2", "ext3", "ext4", "xfs", "btrfs"])
def test_equal_states_have_the_answers_that_each_would_have(
    guestmark: CommandLine, programs: Programs, filesystem: str
) -> None:
    """Whether images are told apart before they are mounted, or files after it."""
    found = proof(
        guestmark(
            *HERE, "--set", f"filesystem={filesystem}", "--json", "-", "--check", programs.check, "--",
            *programs.writer("careless", 5), timeout=200,
        )
    )  # fmt: skip
    kept = evidence.load_evidence(found["kept"])
    judged = {}
    for forgetful in (True, False):
        _, _, runs, failed = checks.judge_states(kept, 60, forgetful=forgetful)
        judged[forgetful] = (failed, runs)
    assert judged[True][0] == judged[False][0] != set()
    assert 2 * judged[False][1] < judged[True][1]


def test_a_line_that_was_never_acknowledged_looks_like_one() -> None:
    assert check_proof.make_unacknowledged_line([b"a 1", b"a 14 of 20"]) == b"a 14 of 1000023"
    assert check_proof.make_unacknowledged_line([b"done"]) == b"done-never"


def test_a_world_ends_as_a_whole(tmp_path: Path) -> None:
    """Also when what started it is killed: with a daemon that has left its session, its own files, and its network."""
    if why := user_check.explain_no_sandbox():
        pytest.skip(why)
    room, disk = tmp_path / "room", tmp_path / "disk"
    for directory in (room, disk):
        directory.mkdir()
    script = "setsid sleep 4711 & echo x > /tmp/of-a-world; echo x > here; sleep 4711"
    process = subprocess.Popen([*user_check.build_world_command(room, disk), "sh", "-c", script], cwd=disk)
    try:
        assert wait_until((disk / "here").exists, 10)
        assert not Path("/tmp/of-a-world").exists()
    finally:
        process.kill()
        process.wait()

    gone = ["sh", "-c", "! pgrep -fx 'sleep 4711'"]
    assert wait_until(lambda: not subprocess.run(gone, check=False).returncode, 10)
    with contextlib.suppress(FileNotFoundError):
        assert not list(room.iterdir())


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -o remount,rw /",
        "mount -t tmpfs none /mnt",
        "umount -l .",
        "mknod /tmp/node b 7 0",
        f"{sys.executable} -I -S -c 'import time; time.clock_settime(time.CLOCK_REALTIME, time.time())'",
        "dmesg --console-off",
    ],
)
def test_root_cannot_undo_the_world_of_a_check(tmp_path: Path, attempt: str) -> None:
    if why := user_check.explain_no_sandbox():
        pytest.skip(why)
    room, disk = tmp_path / "room", tmp_path / "disk"
    for directory in (room, disk):
        directory.mkdir()
    script = f"echo x > here; chown 1 here; {attempt}"
    done = subprocess.run(
        [*user_check.build_world_command(room, disk), "sh", "-c", script],
        cwd=disk, capture_output=True, check=False, timeout=20,
    )  # fmt: skip
    assert done.returncode != 0
    # On its disk it has all rights of root.
    assert (disk / "here").stat().st_uid == 1


_OPENED = """
import errno, os, stat, sys
for name in ("null", "zero", "full", "random", "urandom"):
    os.close(os.open("/dev/" + name, os.O_RDWR))
os.write(os.open("/dev/null", os.O_WRONLY), b"x")
os.openpty()
tried = 0
for folder, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if not stat.S_ISBLK(mode) and name not in ("loop-control", "mem", "port", "fuse"):
            continue
        tried += 1
        for flags in (os.O_RDONLY, os.O_RDWR):
            try:
                os.open(path, flags)
            except PermissionError:
                continue
            except OSError as error:
                sys.exit(f"{path}: {error}")
            sys.exit(f"{path} was opened")
print(tried)
"""


def test_a_check_reaches_no_device_of_the_host(tmp_path: Path) -> None:
    """Not even as root: a disk that is mounted read-only could be written to by its device."""
    if why := user_check.explain_no_sandbox():
        pytest.skip(why)
    room, disk = tmp_path / "room", tmp_path / "disk"
    for directory in (room, disk):
        directory.mkdir()
    done = subprocess.run(
        [*user_check.build_world_command(room, disk), sys.executable, "-I", "-S", "-c", _OPENED],
        cwd=disk, capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        # Its file is gone when it ends, as after a trap.
        ("{fill}; rm /tmp/filled; exit 1", Ending.OUT_OF_ROOM),
        ("{fill}; exit 139", Ending.OUT_OF_ROOM),
        ("{fill}; exit 0", Ending.PASSED),
        ("echo x > /tmp/small; exit 1", Ending.FAILED),
    ],
    ids=["removed", "crashed", "passed", "not full"],
)
@pytest.mark.parametrize("where", ["/tmp", long("/dev/shm")])
def test_a_check_whose_tmp_was_full_says_nothing_of_the_disk(
    tmp_path: Path, where: str, script: str, ending: Ending
) -> None:
    if why := user_check.explain_no_sandbox():
        pytest.skip(why)
    disk = tmp_path / "disk"
    disk.mkdir()
    fill = (
        "fallocate -l $(($(df --output=avail -B1 /tmp | tail -n 1) - 65536)) /tmp/filled; yes >> /tmp/filled"
    )
    command = script.format(fill=fill).replace("/tmp", where)
    check = user_check.Check(command, [b"x"], user_check.Limit(30.0), apart=True, always=False)
    assert user_check.run_check_here(check, tmp_path, disk, [b"x"]).ending is ending


REDIS = shutil.which("redis-server")
_REDIS = """
redis-server --dir "$PWD" --appendonly yes --appendfsync {fsync} --save '' --port 6379 --logfile '' > log.{when} 2>&1 &
until redis-cli ping 2> /dev/null | grep -q PONG; do sleep 0.05; done
"""


@pytest.mark.long
@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
@pytest.mark.parametrize(("fsync", "word"), [("always", "proven"), ("no", "lost")])
def test_redis_on_its_usual_port(guestmark: CommandLine, programs: Programs, fsync: str, word: str) -> None:
    program = programs.shell(
        "program.sh",
        _REDIS.format(fsync=fsync, when="before")
        + "for n in 1 2 3 4 5 6 7 8; do redis-cli set key$n $n > /dev/null && echo key$n; read answer; done",
    )
    check = programs.shell(
        "check.sh",
        _REDIS.format(fsync=fsync, when="after")
        + 'while read key; do [ "$(redis-cli get $key)" = "${key#key}" ] || { echo "$key lost"; exit 1; }; done',
    )
    found = proof(guestmark(*HERE, "--json", "-", "--check", check, "--", *program.split(), timeout=290))
    assert found["word"] == word, found


# Each number replaces the one before: its name is never synced, or with `content` what is in it.
_REPLACES = """
import os, sys
os.mkdir("d")
os.sync()
for number in range(4):
    new = os.open("d/new", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(new, b"%d\\n" % number * 3000)
    if sys.argv[1] == "name":
        os.fsync(new)
    os.rename("d/new", "d/number")
    if sys.argv[1] == "content":
        os.fsync(os.open("d", os.O_RDONLY))
    print(number, flush=True)
    sys.stdin.readline()
"""
_NEWEST = """
import os, sys
wanted = max(int(line) for line in sys.stdin)
there = open("d/number").read().split() if os.path.exists("d/number") else ["-1"]
sys.exit("an old number is there" if int(there[0] if there else -1) < wanted else 0)
"""


_REPLACES_HONESTLY = """
import os, sys
for number in range(4):
    new = os.open("new", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(new, b"%d\\n" % number)
    os.fsync(new)
    os.rename("new", "number")
    os.fsync(os.open(".", os.O_RDONLY))
    print(number, flush=True)
    sys.stdin.readline()
"""


def test_a_check_that_accepts_nothing_newer_calls_nobody_lost(
    guestmark: CommandLine, programs: Programs
) -> None:
    """After a cut the next number may be there already: that loses nothing, whatever such a check says."""
    program = programs.script("replaces.py", _REPLACES_HONESTLY).split()
    strict = 'test "$(cat number)" = "$(tail -n 1)"'
    done = guestmark(*HERE, "--json", "-", "--check", strict, "--", *program, timeout=200)
    found = proof(done)
    assert (found["word"], found["losing"]) == ("unknown", 0), found
    assert "it passes if its input also has the next line" in found["why"]
    assert "accept anything newer" in found["why"]
    assert found["unjudged"] > 0
    fair = 'test "$(cat number)" -ge "$(tail -n 1)"'
    honest = proof(guestmark(*HERE, "--json", "-", "--check", fair, "--", *program, timeout=200))
    assert (honest["word"], honest["losing"]) == ("proven", 0), honest


@pytest.mark.parametrize(
    ("how", "call", "added"),
    [
        long(
            "name", "the rename of d/new to d/number was never followed by a sync of d", "rename d/number",
        ),
        (
            "content",
            "what was written to d/new, which is d/number now, was never synced", "write d/new",
        ),
    ],
    ids=["name", "content"],
)  # fmt: skip
def test_a_loss_has_a_reason_and_a_cure_that_holds(
    guestmark: CommandLine, programs: Programs, how: str, call: str, added: str
) -> None:
    program = [*programs.script("replaces.py", _REPLACES).split(), how]
    check = programs.script("newest.py", _NEWEST)
    options = ("--set", "mount=noauto_da_alloc") if how == "content" else ()
    done = guestmark(*HERE, *options, "--json", "-", "--check", check, "--", *program, timeout=200)
    found = proof(done)
    assert found["word"] == "lost", found
    why = found["explanation"]
    assert why["said"] == "an old number is there"
    assert [file.startswith("d/number") for file in why["files"]] == [True], why
    assert (why["calls"], why["added"]) == ([call], [added]), why
    assert why["states"] > 20
    assert why.get("losing", 0) == 0
    said = " ".join(guestmark("show").stdout.split())
    assert call in said
    assert f"With a sync added after {added}, none of" in said


# Neither a new file's content nor the name that refers to it is synced, as in git without `core.fsync`.
_REFERS = """
import os, sys
os.mkdir("objects")
os.sync()
for number in range(6):
    with open("objects/new", "w") as new:
        new.write("object %d" % number * 2000)
    os.rename("objects/new", "objects/%d" % number)
    with open("lock", "w") as lock:
        lock.write("%06d" % number)
    os.rename("lock", "head")
    print(number, flush=True)
    sys.stdin.readline()
"""
_REFERRED = """
import os, sys
wanted = max(int(line) for line in sys.stdin)
head = open("head").read() if os.path.exists("head") else ""
path = "objects/%d" % int(head or -1)
whole = os.path.exists(path) and open(path).read() == "object %d" % int(head) * 2000
sys.exit(0 if whole and int(head) >= wanted else "the head is lost")
"""
# It says that a number is safe, and writes it when it is asked for the next one.
_HASTY = """
import os, sys
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.sync()
for number in range(12):
    print(number, flush=True)
    sys.stdin.readline()
    os.write(data, b"%08d\\n" % number)
    os.fsync(data)
"""


@pytest.mark.long
def test_all_syncs_that_a_program_lacks_are_found(guestmark: CommandLine, programs: Programs) -> None:
    program = programs.script("refers.py", _REFERS).split()
    check = programs.script("referred.py", _REFERRED)
    done = guestmark(
        "powercut", "--on", "host", "--set", "mount=noauto_da_alloc", "--states", "100", "--json", "-",
        "--check", check, "--", *program, timeout=500,
    )  # fmt: skip
    found = proof(done)
    assert found["word"] == "lost", found
    why = found["explanation"]
    assert why["states"] > 100
    assert why.get("losing", 0) == 0, why
    assert not why.get("every"), why
    # The name needs a sync after it, and what it refers to one before it.
    assert any(place.startswith(("rename", "create", "write")) for place in why["added"]) or why["each"], why
    assert len(why["added"]) + why.get("each", False) >= 2, why


@pytest.mark.long
def test_no_sync_cures_a_program_that_acknowledges_before_it_writes(
    guestmark: CommandLine, programs: Programs
) -> None:
    program = programs.script("hasty.py", _HASTY).split()
    done = guestmark(*HERE, "--json", "-", "--check", programs.check, "--", *program, timeout=500)
    found = proof(done)
    assert found["word"] == "lost", found
    why = found["explanation"]
    assert why["every"], why
    assert why["each"], why
    assert why["untorn"]["flushed"] > 0, why
    said = " ".join(guestmark("show", "--details").stdout.split())
    assert "it acknowledges before it writes, which no sync cures" in said


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_a_ring_that_the_kernel_polls_keeps_no_disk_busy(guestmark: CommandLine) -> None:
    """It holds its files for a moment after its process has ended."""
    job = "fio --name=w --rw=write --bs=4k --size=44k --fsync=1 --ioengine=io_uring --sqthread_poll=1"
    found = proof(guestmark(*HERE, "--json", "-", "--", *job.split(), timeout=250))
    assert (found["word"], found["unsynced"][0]["path"].rpartition("/")[2]) == ("unknown", "w.0.0")


@pytest.mark.parametrize("checked", [False, True])
def test_a_program_is_named_from_where_the_user_is(
    guestmark: CommandLine, tmp_path: Path, checked: bool
) -> None:
    """It runs in a directory of the disk, in which there is no such program."""
    program = tmp_path / "store"
    program.write_text("#!/bin/sh\necho x > file && sync file . && echo file\nread answer || true\n")
    program.chmod(0o755)
    check = ("--check", "while read name; do cat $name; done") if checked else ()
    found = proof(guestmark(*HERE, "--json", "-", *check, "--", "./store", cwd=tmp_path, timeout=100))
    assert found["word"] == "proven", found


def test_a_loop_device_that_got_no_flush_before_loses_nothing(guestmark: CommandLine, tmp_path: Path) -> None:
    """What was said of a device's cache outlasts its file since Linux 6.11, and later files get the same numbers."""
    (tmp_path / "before").write_bytes(bytes(1 << 20))
    attach = ["losetup", "--find", "--show", str(tmp_path / "before")]
    # Others may take some of them first.
    devices = [subprocess.run(attach, capture_output=True, text=True, check=True) for _ in range(4)]
    names = [done.stdout.strip() for done in devices]
    modes = [Path("/sys/block", Path(name).name, "queue/write_cache") for name in names]
    try:
        for mode in modes:
            mode.write_text("write through")
        subprocess.run(["losetup", "--detach", *names], check=True)
        found = proof(guestmark(*HERE, "--json", "-", "--", "sh", "-c", "echo x > a; sync a .", timeout=100))
    finally:
        for mode in modes:
            mode.write_text("write back")
    assert found["word"] == "proven", found


def test_a_program_whose_servers_outlive_it_is_judged(guestmark: CommandLine, programs: Programs) -> None:
    """They keep files of its disk open, and its streams."""
    server = "exec 3>> served; while :; do sleep 0.1; done"
    leaves = (
        f"cd . && (setsid sh -c '{server}' {ALONE}-server &) && echo 1 > one && sync && echo 1 && read answer"
    )
    check = 'while read n; do [ "$(cat one)" = "$n" ] || exit 1; done'
    found = proof(guestmark(*HERE, "--json", "-", "--check", check, "--", "sh", "-c", leaves, timeout=250))
    assert (found["word"], found["acknowledged"]) == ("proven", 1), found
    assert not subprocess.run(["pgrep", "-f", f"{ALONE}-server"], capture_output=True, check=False).stdout
