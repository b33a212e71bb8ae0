"""Machines that a user's own commands make: measured, checked, and removed however the run ends."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from guestmark.ledger import open_ledger
from guestmark.platforms.own import guard
from guestmark.platforms.own.conformance import Point, check_definition
from guestmark.platforms.own.definition import read_definition
from guestmark.platforms.own.store import VARIABLE, find_definition, trust
from tests.framework.command_line import CommandLine, processes_with
from tests.framework.marks import long
from tests.framework.own_machines import CREATE, DESTROY, ENTER, own_machine, script, words
from tests.framework.processes import called, kill, others, wait_until
from tests.framework.stand_ins import TOOLS, install_tools

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are entered by root")


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))


def checked(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    monkeypatch.setenv(VARIABLE, str(path))
    definition = read_definition(path)
    trust(definition)
    return list(check_definition(definition))


def left(folder: Path) -> list[str]:
    """Machines whose file is still there."""
    return sorted(path.name for path in (folder / "machines").iterdir())


def test_a_sound_definition_holds_in_all_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = checked(own_machine(tmp_path), monkeypatch)
    assert [point for point in points if point.failed] == []
    assert len(points) == 15
    assert left(tmp_path) == []


# They ask for processors and memory that namespaces do not have, which trials find.
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(TOOLS))
def test_a_shipped_definition_fits_its_tool(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins: neither clusters nor clouds are here. Its commands are those that the tool's manual has."""
    monkeypatch.setenv("PATH", f"{install_tools(tmp_path, name)}:{os.environ['PATH']}")
    points = list(check_definition(find_definition(name)))
    failed = [point for point in points if point.failed and "asked for" not in point.failed]
    assert failed == []
    assert len(points) >= 11
    assert list((tmp_path / "state").iterdir()) == []


SLOW_CREATE = f"(sleep 3; {CREATE}) > /dev/null 2>&1 & true"
ONE_NAME = '[ ! -e "$0/one" ] || exit 9; {}; cp "$0/one" "$0/$1"'.format(
    CREATE.replace('"$0/$1"', '"$0/one"')
)
ALL_DESTROYED = 'kill -KILL $(cat "$0"/*); rm -f "$0"/*'
KEEPS = CREATE.replace("mount -t tmpfs none /tmp", 'mkdir -p "$0/../kept"; mount --bind "$0/../kept" /tmp')
INSIDE = '"$machine" "$@"'
# The fault, the changed line, and the point and what to change that have to be named.
FAULTS = {
    "create fails": ("create", "echo no such runtime >&2; exit 3", "create makes a machine", "try it yourself"),
    "create hangs": ("create", "sleep 100", "create makes a machine", "try it yourself"),
    "create returns early": ("create", SLOW_CREATE, "a command runs in it at once", "define ready"),
    "never ready": ("ready", "echo not yet; exit 1", "create makes a machine", "try it yourself"),
    "streams are merged": ("exec", f"{ENTER} 2>&1", "both outputs arrive", "keep the two streams apart"),
    "carriage returns": ("exec", f"{ENTER.replace('exec ', '')} | sed 's/$/\\r/'", "both outputs arrive", "terminal"),
    "a banner": ("exec", f"echo Welcome; {ENTER}", "both outputs arrive", "anything of its own"),
    "the status is lost": ("exec", f"{ENTER.replace('exec ', '')}; true", "exit statuses", "own exit status"),
    "no standard input": ("exec", f"{ENTER} < /dev/null", "pass both ways", "-i"),
    "a limit of 1 MB": ("exec", f"{ENTER.replace('exec ', '')} | head -c 1000000", "pass both ways", "without a limit"),
    "arguments are joined": ("exec", ENTER.replace(INSIDE, '"$machine" sh -c "$*"'), "arguments", "{command}"),
    "destroy does nothing": ("destroy", "true", "destroy removes it", "remove the machine"),
    "destroy fails": ("destroy", f"{DESTROY}; exit 4", "destroy removes it", "try it yourself"),
    "destroy takes all": ("destroy", ALL_DESTROYED, "destroy removes it", "only the machine"),
    "one name for all": ("create", ONE_NAME, "destroy removes it", "{id}"),
    "list is blind": ("list", "", "list prints it", "one per line"),
    "pid is none": ("pid", "echo 12 monkeys", "pid is a process", "only the process id"),
    "high statuses are cut": (
        "exec", f"{ENTER.replace('exec ', '')}; exit $(($? & 127))", "exit statuses", "own exit status",
    ),
    "output at the end only": (
        "exec", f"printed=$(mktemp); {ENTER.replace('exec ', '')} > \"$printed\"; cat \"$printed\"; rm \"$printed\"",
        "output arrives while", "plain = true",
    ),
    "ends by itself": ("create", CREATE.replace("sleep infinity", "sleep 4"), "it stays until", "keeps running"),
    "destroy leaves its processes": ("destroy", 'mv "$0/$1" "$0/../left-$1"', "destroy removes it", "end all of"),
    "a line too many": (
        "exec", f"{ENTER.replace('exec ', '')}; s=$?; echo; exit $s", "64 MiB pass both ways", "anything of its own",
    ),
    "a limit of time": ("exec", ENTER.replace("exec ", "exec timeout 1 "), "the agent answers", "for as long as"),
    "destroy returns early": (
        "destroy", f"(sleep 3; {DESTROY}) > /dev/null 2>&1 &", "destroy removes it", "before it returns",
    ),
    "the same disk": ("create", KEEPS, "each machine is a new one", "make a new machine"),
}  # fmt: skip
QUICK = {"create returns early", "streams are merged"}


@pytest.mark.parametrize("fault", [fault if fault in QUICK else long(fault) for fault in FAULTS])
def test_a_planted_fault_is_named_with_what_to_change(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, text, point, change = FAULTS[fault]
    changes = {key: script(tmp_path, text, *(["{command}"] if key == "exec" else [])) if text else '"true"'}
    if fault == "create returns early":
        changes["ready"] = ""
    changes["timeouts"] = "{ create = 5, ready = 5, destroy = 5 }"
    points = checked(own_machine(tmp_path, **changes), monkeypatch)
    failed = [each for each in points if each.failed]
    assert any(point in each.name and change in each.change for each in failed), failed
    # A check is promised to take a minute at most, whatever is wrong; on a busy host each part takes longer.
    assert sum(each.took_s for each in points) < 60, points
    # What some of these faults leave is their point: destroy does not know of what comes after it.
    if fault == "create returns early":
        wait_until(lambda: left(tmp_path))
    for file in (*(tmp_path / "machines").iterdir(), *tmp_path.glob("left-*")):
        subprocess.run(["kill", "-KILL", file.read_text().strip()], check=False)


def test_a_definition_is_measured_like_a_platform(guestmark: CommandLine, tmp_path: Path) -> None:
    path = own_machine(tmp_path)
    guestmark.environment[VARIABLE] = str(path)
    refused = guestmark.measure("--on", "own:cell", "--", "true")
    assert refused.status != 0
    assert "are not trusted yet" in refused.stderr
    trust_as(guestmark, path)
    document = guestmark.measure("--on", "host,own:cell", "-r", "2", "--", "true").document()
    assert {"host", "own:cell"} <= {cell["id"] for cell in document["cells"]}
    assert left(tmp_path) == []


def trust_as(guestmark: CommandLine, path: Path) -> None:
    """Trust a file as the user of that command line."""
    code = (
        "from pathlib import Path; from guestmark.platforms.own.definition import read_definition; "
        f"from guestmark.platforms.own.store import trust; trust(read_definition(Path({str(path)!r})))"
    )
    subprocess.run([sys.executable, "-c", code], env=guestmark.environment, check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_killed(
    guestmark: CommandLine, tmp_path: Path, number: signal.Signals
) -> None:
    path = own_machine(tmp_path)
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    run = guestmark.start("exec", "--on", "own:cell", "--", "sleep", "60")
    wait_until(lambda: left(tmp_path), 60)
    run.send_signal(number)
    run.wait(60)
    wait_until(lambda: not left(tmp_path), 60)
    records = Path(guestmark.environment["XDG_CACHE_HOME"]) / "guestmark" / "machines"
    wait_until(lambda: not list(records.rglob("*.json")), 30)


def test_the_way_from_a_machine_to_this_host_is_measured(guestmark: CommandLine, tmp_path: Path) -> None:
    path = own_machine(tmp_path)
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    run = ("run", "network", "--on", "own:cell", "--blocks", "1")
    short = ("--override", "workloads.network.params.time=50ms", "--json", "-")
    unknown = guestmark(*run, *short)
    assert unknown.status
    assert "the address at which own:cell reaches this host is not known" in unknown.stderr
    done = guestmark(*run, "--set", "peer_address=127.0.0.1", *short, timeout=300)
    assert done.status == 0, done.stderr
    (cell,) = done.document()["cells"]
    (trial,) = cell["trials"]
    assert trial["attestation"]["network"]["network"] == "existing"
    assert trial["measurements"]["request_s"] > 0
    assert left(tmp_path) == []


def test_machines_that_never_answer_are_counted_by_reason(guestmark: CommandLine, tmp_path: Path) -> None:
    """Every third one cannot be created, as clouds without capacity say it."""
    count = 'n=$(($(cat "$0.count" 2>/dev/null || echo 0) + 1)); echo $n > "$0.count"; '
    fails = '[ $((n % 3)) != 0 ] || { echo "no capacity left in this zone" >&2; exit 7; }; '
    path = own_machine(tmp_path, create=script(tmp_path, count + fails + CREATE), price_per_hour="0.36")
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    done = guestmark.measure("--on", "own:cell", "--null", "none", "-r", "7", "--", "true")
    assert done.status == 1
    said = " ".join(guestmark("show", "--details").stdout.split())
    assert "own:cell machines: " in said
    failed = re.search(
        r"(\d) of (\d) never answered, (\d+) % \[(\d+), (\d+)\]: (\d) × .*no capacity left", said
    )
    assert failed is not None, said
    assert failed[1] == failed[6]
    assert int(failed[4]) <= int(failed[3]) <= int(failed[5])
    assert "0.36 an hour, " in said
    assert " for 1,000 starts of " in said
    assert left(tmp_path) == []


@pytest.mark.long
def test_a_file_that_is_changed_during_a_run_is_seen_in_the_report(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    digests: list[str] = []
    for words_of_run in (("exec", "--on", "own:cell", "--blocks", "1", "--null", "none", "--", "true"),
                         ("resume", "last", "--blocks", "2")):  # fmt: skip
        path = own_machine(tmp_path, help=f'"version {len(digests)}"')
        guestmark.environment[VARIABLE] = str(path)
        trust_as(guestmark, path)
        digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
        assert guestmark(*words_of_run).status == 0
    shown = " ".join(guestmark("show", "last", "--details").stdout.split())
    assert all(f"file {digest[:12]}" in shown for digest in digests)


def records(guestmark: CommandLine) -> list[Path]:
    """What is remembered of machines that somebody has to destroy."""
    return list((Path(guestmark.environment["XDG_CACHE_HOME"]) / "guestmark" / "machines").rglob("*.json"))


def nothing_left(guestmark: CommandLine, folder: Path, mark: str) -> bool:
    return wait_until(lambda: not left(folder) and not records(guestmark) and not processes_with(mark), 15)


@pytest.mark.parametrize("key", ["version", "create", "ready", "pid", "exec"])
def test_a_command_that_hangs_goes_with_guestmark(guestmark: CommandLine, tmp_path: Path, key: str) -> None:
    """It ignores what it can, and has a child in a session of its own."""
    mark = f"30{os.getpid()}"
    begin = f"{CREATE}; " if key == "create" else ""
    hang = script(tmp_path, f"trap '' TERM HUP INT PIPE; {begin}setsid sleep {mark} & sleep {mark}")
    if key == "version":
        hang = hang.replace(', "{id}"', "")
    if key == "exec":
        hang = hang[:-1] + ', "{command}"]'
    # What create had started was killed with it.
    path = own_machine(
        tmp_path, destroy=script(tmp_path, 'kill -KILL $(cat "$0/$1"); rm -f "$0/$1"'), **{key: hang}
    )
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    run = guestmark.start("exec", "--on", "own:cell", "--", "true")
    assert wait_until(lambda: len(processes_with(mark)) == 2, 60)
    run.kill()
    run.wait()
    assert nothing_left(guestmark, tmp_path, mark)


def test_what_a_daemon_creates_too_late_is_destroyed(guestmark: CommandLine, tmp_path: Path) -> None:
    """The tool has asked a daemon, is killed with guestmark, and the daemon goes on for a second."""
    machines = tmp_path / "machines"
    late = (
        f"until asked=$(ls {tmp_path}/asked 2> /dev/null | grep .); do sleep 0.02; done; touch {tmp_path}/seen; "
        f'sleep 1; sh -c "$1" {machines} "$asked"; touch {tmp_path}/done'
    )
    daemon = subprocess.Popen(["sh", "-c", late, "sh", CREATE], start_new_session=True)
    asks = script(tmp_path, f'mkdir -p {tmp_path}/asked; : > {tmp_path}/asked/"$1"; exec sleep 60')
    gone_or_never = script(tmp_path, f'[ ! -e "$0/$1" ] || {{ {DESTROY}; }}')
    path = own_machine(tmp_path, create=asks, destroy=gone_or_never)
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    run = guestmark.start("exec", "--on", "own:cell", "--", "true")
    assert wait_until((tmp_path / "seen").exists, 60)
    run.kill()
    run.wait()
    daemon.wait(20)
    assert (tmp_path / "done").exists()
    assert nothing_left(guestmark, tmp_path, "-")


def test_a_machine_whose_guard_was_killed_is_destroyed_at_the_end(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    path = own_machine(tmp_path)
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    with guestmark.running(
        "exec", "--on", "own:cell", "-r", "1", "--null", "none", "--", "sleep", "3"
    ) as run:
        assert wait_until(lambda: processes_with("3"), 60)
        guards = [int(found.name) for found, words in others() if b"while read -r word" in b" ".join(words)]
        mine = [pid for pid in guards if str(tmp_path) in called(pid)]
        assert mine
        kill(mine, signal.SIGKILL)
        assert run.wait(60) == 0
    assert nothing_left(guestmark, tmp_path, "-")


def test_a_destroy_that_hangs_is_said_and_clean_does_it(guestmark: CommandLine, tmp_path: Path) -> None:
    mark = f"31{os.getpid()}"
    path = own_machine(
        tmp_path,
        destroy=script(tmp_path, f"[ -e {tmp_path}/well ] || exec sleep {mark}; {DESTROY}"),
        timeouts="{ destroy = 1 }",
    )
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    done = guestmark("exec", "--on", "own:cell", "-r", "1", "--null", "none", "--", "true")
    assert done.status != 0
    assert "could not be destroyed" in done.stderr + done.stdout
    assert not processes_with(mark)
    kept = len(left(tmp_path))
    assert len(records(guestmark)) == kept > 0
    failed = guestmark("clean", "--on", "own:cell")
    assert len(left(tmp_path)) == kept, failed
    (tmp_path / "well").touch()
    assert "own:cell" in guestmark("clean", "--on", "own:cell").stdout
    assert nothing_left(guestmark, tmp_path, mark)


def test_a_machine_that_is_not_listed_needs_no_record(guestmark: CommandLine, tmp_path: Path) -> None:
    """A create that says it has failed, and a destroy that fails because nothing is there."""
    path = own_machine(tmp_path, create=script(tmp_path, "exit 3"))
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    assert guestmark("exec", "--on", "own:cell", "--", "true").status != 0
    assert records(guestmark) == []


@pytest.mark.parametrize("how", ["another user's", "writable", "a link", "a pipe", "torn"])
def test_a_record_that_is_not_ones_own_is_not_executed(tmp_path: Path, how: str) -> None:
    folder = guard._locate_records()
    folder.mkdir(parents=True)
    file = folder / "guestmark-0123456789abcdef.json"
    record = guard.Record(name="cell", id=file.stem, destroy=["touch", str(tmp_path / "executed")])
    text = msgspec.json.encode(record)
    file.write_bytes(text[:40] if how == "torn" else text)
    match how:
        case "another user's":
            os.chown(file, 65534, 65534)
        case "writable":
            file.chmod(0o666)
        case "a link":
            file.rename(tmp_path / "record")
            file.symlink_to(tmp_path / "record")
        case "a pipe":
            file.unlink()
            os.mkfifo(file)
    found = guard.destroy_orphans(dry_run=False)
    assert not (tmp_path / "executed").exists()
    assert [bool(orphan.problem) for orphan in found] == ([True] if how == "torn" else [])


def test_where_there_is_no_room_one_line_says_so(guestmark: CommandLine, tmp_path: Path) -> None:
    """The record of a machine cannot be written."""
    path = own_machine(tmp_path)
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "full", str(full)], check=True)
    try:
        (full / "file").write_bytes(b"")
        done = guestmark("machine", "check", path, env={"XDG_CACHE_HOME": str(full)})
        assert done.status == 1, done
        assert "the machine's record cannot be written: No space left" in done.stdout
        # What one cannot be destroyed by is not created.
        assert left(tmp_path) == []
    finally:
        subprocess.run(["umount", str(full)], check=True)


SECRET = "hunter-number-2"


def test_values_of_variables_are_stored_and_printed_nowhere(guestmark: CommandLine, tmp_path: Path) -> None:
    """Commands print them in every place that is looked at: version, errors of each kind, output, the console."""
    path = own_machine(
        tmp_path,
        env=f'{{ CELL_TOKEN = "{SECRET}", PLAIN = "word" }}',
        version=words("sh", "-c", "echo 1.0 $CELL_TOKEN"),
    )
    broken = own_machine(
        tmp_path,
        "broken",
        env=f'{{ CELL_TOKEN = "{SECRET}" }}',
        create=script(tmp_path, "echo no login with $CELL_TOKEN >&2; exit 3"),
    )
    guestmark.environment[VARIABLE] = f"{path}:{broken}"
    said = [guestmark("machine", "trust", file) for file in (path, broken)]
    # The user looks at what is trusted: all of it.
    assert all(SECRET in one.stdout for one in said)
    document, page, bundle = (str(tmp_path / name) for name in ("a.json", "a.html", "b.html"))
    said = [
        guestmark(
            "exec", "--on", "host,own:cell", "-r", "2", "--null", "none", "--json", document, "--html", page,
            "--note", f"made with {SECRET}", "--", "sh", "-c", "env; env >&2; exit 3",
        ),
        guestmark("exec", "--on", "own:broken", "--", "true"),
        guestmark("machine", "check", broken),
        guestmark("machine", "check", "broken", "--json"),
        guestmark("show", "last", "--details"),
        guestmark("export", "last"),
        guestmark("export", "last", "--bundle", bundle, "--consoles", "--host-name"),
        guestmark("runs", "--json"),
    ]  # fmt: skip
    assert "***" in said[1].stderr + said[1].stdout
    for one in said:
        assert SECRET not in one.stdout + one.stderr
    for file in (document, page, bundle):
        assert SECRET not in Path(file).read_text()
    with open_ledger(guestmark.ledger, writable=False) as ledger:
        for run in ledger.list_runs():
            assert SECRET not in repr(ledger.load_run(run.id))
            assert SECRET not in repr(ledger.read_annotations(run.id))
    for folder in (tmp_path / "state", tmp_path / "cache", guestmark.folder):
        for kept in folder.rglob("*"):
            if kept.is_file() and kept.suffix != ".toml" and not kept.is_symlink():
                assert SECRET.encode() not in kept.read_bytes(), kept


def test_a_foreign_file_is_not_copied_into_ones_own_folder_before_it_is_trusted(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    path = own_machine(tmp_path)
    copied = guestmark("machine", "new", "mine", "--from", path)
    assert copied.status != 0
    assert "are not trusted yet" in copied.stderr
    shown = guestmark("machine", "show", path)
    assert "this file is not trusted" in shown.stderr
    assert shown.stdout == path.read_text()
    guestmark("machine", "trust", path)
    assert guestmark("machine", "new", "mine", "--from", path).status == 0
    assert guestmark("machine", "show", "mine").stderr == ""
