"""A plan on the machines of a lab: exactly once whatever dies, and held against each other."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from bench.fleet.simulated import simulate

from guestmark import __version__
from guestmark.cli.do import fleet_doctor
from guestmark.cli.do.fleet_doctor import explain_missing_room
from guestmark.cli.fleet_progress import FleetProgress, render_states
from guestmark.core.context import FleetOrder
from guestmark.core.errors import LedgerError, UsageError
from guestmark.core.findings import MeasuredOn, add_fact, find_machine
from guestmark.core.model import TrialStatus
from guestmark.fleet import lab as labs
from guestmark.fleet.coordinator import Fleet, MachineState
from guestmark.fleet.order import MachineProgress
from guestmark.fleet.worker_connection import LinkEnd, WorkerAddresses, WorkerLink
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import TrialAttempts, count_refused_attempts, record_lost_attempts
from guestmark.ledger.postgres import find_connection_room
from guestmark.stats.across_runs import PastRatio
from guestmark.stats.analysis import analyse_run
from guestmark.stats.machines import detect_machine_drift, pool_machines
from tests.framework import PACKAGES
from tests.framework.command_line import CommandLine, processes_with
from tests.framework.labs import HERE, lab
from tests.framework.ledgers import PLAN, trial
from tests.framework.namespaces import network
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import alive, called, children, gone, kill, processors, wait_until
from tests.framework.runs import host_uml_tcg
from tests.framework.sshd import Sshd, sshd
from tests.storm.fleet import Outcome, exactly_once, parts, pools, schedulers, stormy

_OLDER = (
    sys.executable,
    "-c",
    "import guestmark, runpy; guestmark.__version__ = '0.1.0'; "
    "runpy.run_module('guestmark', run_name='__main__', alter_sys=True)",
)
needs_engine = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("parsl") or shutil.which("ssh") is None,
    reason="install guestmark[fleet] and the package openssh-client",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The lab's ledger."""
    with postgresql() as running:
        yield running


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """What ssh reaches under any name."""
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.mark.long
@needs_engine
def test_every_machine_measures_the_plan(guestmark: CommandLine, server: Server, reached: Sshd) -> None:
    made = lab(guestmark, server.url, ["lab1", "lab2"])
    done = guestmark(*made.arguments(), "--json", "-", env={"GUESTMARK_SSH": reached.client}, timeout=120)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert [machine["name"] for machine in document["machines"]] == ["lab1", "lab2"]
    assert all(machine["trials"] == {"ok": 9, "failed": 0, "lost": 0} for machine in document["machines"])
    runs = [
        run for run in made.runs() if (order := run.plan.context.fleet) and order.fleet == document["fleet"]
    ]
    assert exactly_once(runs, 3) == 0
    shown = guestmark("fleet", "show", "last", "--ledger", server.url)
    assert "lab2" in shown.stdout
    typed = {
        "_GUESTMARK_COMPLETE": "complete_bash",
        "COMP_WORDS": "guestmark fleet resume f",
        "COMP_CWORD": "3",
    }
    assert document["fleet"] in guestmark(env={**typed, "GUESTMARK_LEDGER": server.url}).stdout.split()
    again = guestmark("fleet", "resume", document["fleet"], "--ledger", server.url, "-q", timeout=60)
    assert again.status == 0
    guestmark.assert_nothing_left()


@needs_engine
@pytest.mark.long
def test_whatever_dies_each_trial_is_there_once_or_lost(tmp_path: Path) -> None:
    """One seed; `python -m tests.storm.fleet` has any number."""
    outcome = Outcome()
    with stormy(tmp_path, 1, blocks=10) as storm:
        storm.rage(12, time.monotonic() + 60, outcome)
    print(f"{outcome.faults.total()} faults, {outcome.lost} trials lost")
    assert not outcome.problems
    assert outcome.faults.total() > 5


@needs_engine
@pytest.mark.long
@pytest.mark.timeout(900)  # a busy machine takes its time
def test_simulated_machines_lose_and_double_nothing() -> None:
    """As many as compete for one server; `python -m bench.fleet.simulated` has any number."""
    made = simulate(machines=20, workers=8, blocks=1, dies=0.08, ends=[5.0])
    assert (made.complete, made.missing, made.doubled) == (20, 0, 0)
    assert made.schedulers == 1
    assert made.memory_mb[1] < made.memory_mb[0] + 30


@needs_engine
@pytest.mark.long
@pytest.mark.parametrize("which", ["oldest", "youngest"])
def test_a_machine_whose_engine_has_lost_a_process_begins_anew(
    guestmark: CommandLine, tmp_path: Path, which: str
) -> None:
    """The engine's worker would stay, take a block, and never begin it."""
    made = lab(guestmark, str(tmp_path / "ledger.sqlite"), [HERE], levels='"1.17"', blocks=3)
    with guestmark.running(*made.arguments()) as process:
        assert wait_until(lambda: processes_with("1.17") or processes_with("sleep 1.17"), 60)
        kill([parts(guestmark.folder)[0 if which == "oldest" else -1]], signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert b"here: its worker has ended: one of the engine's processes there was killed" in said
    assert exactly_once(made.runs(), 3) <= 1
    guestmark.assert_nothing_left()


@needs_engine
@pytest.mark.long
def test_parts_of_an_engine_end_with_its_supervisor(guestmark: CommandLine, tmp_path: Path) -> None:
    """Those that were stopped, or waited for a lock that a killed one had, used to stay for good."""
    made = lab(guestmark, str(tmp_path / "ledger.sqlite"), [HERE], levels='"1.19"', blocks=2)
    with guestmark.running(*made.arguments()) as process:
        assert wait_until(lambda: processes_with("1.19") or processes_with("sleep 1.19"), 60)
        left = parts(guestmark.folder)
        assert len(left) > 1
        kill(left, signal.SIGSTOP)
        (pool,) = pools(guestmark.folder)
        supervisor = int(Path(f"/proc/{pool}/stat").read_text().rpartition(")")[2].split()[1])
        assert "supervise" in called(supervisor)
        kill([supervisor], signal.SIGKILL)
        assert wait_until(lambda: not any(alive(pid) for pid in left), 5)
        process.communicate(timeout=120)
    assert exactly_once(made.runs(), 2) <= 1
    guestmark.assert_nothing_left()


@needs_engine
@pytest.mark.long
def test_what_hung_when_a_fleet_was_killed_is_listed_and_ended_by_clean(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    """Coordinator, worker and supervisor die at once, while everything that these have started is stopped."""
    made = lab(guestmark, str(tmp_path / "ledger.sqlite"), [HERE], levels='"41.3"', blocks=1)
    there = {"TMPDIR": str(guestmark.folder / f"scratch-{HERE}")}
    with guestmark.running(*made.arguments()) as process:
        assert wait_until(lambda: processes_with("41.3") or processes_with("sleep 41.3"), 60)
        (pool,) = pools(guestmark.folder)
        supervisor = _parent(pool)
        worker = _parent(supervisor)
        assert called(worker).rstrip().endswith("fleet worker")
        started = _below(pool)
        kill(started, signal.SIGSTOP)
        kill([worker, supervisor, pool, process.pid], signal.SIGKILL)
        process.wait()
    left: list[int] = []
    assert wait_until(lambda: _settled(left, started), 20)
    assert left
    listed, ended = (guestmark("clean", *words, env=there).stdout for words in (["-n"], []))
    for pid in left:
        assert f"would end process {pid}, whose guestmark has ended" in listed
        assert f"ended process {pid}, whose guestmark has ended" in ended
    assert gone(*started)
    guestmark.assert_nothing_left()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _below(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *_below(child))]


def _settled(left: list[int], pids: list[int]) -> bool:
    """Whether as many are there as a second ago; those are put into `left`."""
    before = [pid for pid in pids if alive(pid)]
    time.sleep(1)
    left[:] = [pid for pid in pids if alive(pid)]
    return left == before


@needs_engine
@pytest.mark.long
def test_a_fleet_that_is_interrupted_is_resumed(
    guestmark: CommandLine, server: Server, reached: Sshd
) -> None:
    made = lab(guestmark, server.url, ["lab1", "lab2"], levels='"1.57"', blocks=2)
    environment = {"GUESTMARK_SSH": reached.client}
    words = (*made.arguments(), "--set", "placement=cpus=0")
    with guestmark.running(*words, env=environment) as process:
        assert wait_until(lambda: len(processes_with("1.57")) == 2, 60)
        assert all(processors(pid) == {"0"} for pid in processes_with("1.57"))
        if len(os.sched_getaffinity(0)) > 1:  # then the engine is not where the trial is
            parts_there = [*pools(guestmark.folder), *parts(guestmark.folder)]
            assert len(parts_there) == 6
            assert all(not listed.startswith("0") for pid in parts_there for listed in processors(pid))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    fleet = re.search(rb"stopped; guestmark fleet resume (\S+) continues", said)
    assert fleet, said
    assert process.returncode == 130
    assert not processes_with("1.57")
    guestmark.assert_nothing_left()
    words = ("fleet", "resume", fleet[1].decode(), "--ledger", server.url)
    done = guestmark(*words, env=environment, timeout=60)
    assert done.status == 0, done.stderr
    runs = [
        run
        for run in made.runs()
        if run.plan.context.fleet is not None and run.plan.context.fleet.fleet == fleet[1].decode()
    ]
    assert len(runs) == 2
    assert exactly_once(runs, 2) == 2


@needs_engine
@pytest.mark.long
def test_an_engine_that_is_killed_while_it_starts_is_started_again(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    """At once: the engine's own patience is two minutes."""
    made = lab(guestmark, str(tmp_path / "ledger.sqlite"), [HERE], levels='"0"', blocks=1)
    with guestmark.running(*made.arguments()) as process:
        assert wait_until(lambda: schedulers(guestmark.folder), 60)
        kill(schedulers(guestmark.folder), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert b"the engine ended while it was starting" in said
    assert b"restarting it" in said
    assert exactly_once(made.runs(), 1) == 0
    guestmark.assert_nothing_left()


@needs_engine
@pytest.mark.long
def test_a_machine_with_two_names_is_told_from_two_machines(
    guestmark: CommandLine, server: Server, reached: Sshd
) -> None:
    made = lab(guestmark, server.url, ["lab1", "lab2"], blocks=2)
    made.machines.write_text(made.machines.read_text().replace("lock-lab2", "lock-lab1"))
    done = guestmark(*made.arguments(), env={"GUESTMARK_SSH": reached.client}, timeout=120)
    assert done.status == 1
    assert re.search(r"lab[12] is the same machine as lab[12], under another name", done.stderr)
    assert "the other machines continue" in done.stderr


@needs_engine
@pytest.mark.long
def test_what_is_wrong_with_one_machine_is_a_line_and_the_others_go_on(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    """Another host key, no key of ours, no route, no program there: each fails as it really does."""
    names = ["good", "strange", "closed", "gone", "bare"]
    with network(tmp_path, [*names[:3], "bare"]) as reached, postgresql(reached.address) as server:
        made = lab(guestmark, server.url, names, blocks=2)
        text = made.machines.read_text()
        before, bare = text.split("[machines.bare]")
        made.machines.write_text(f"{before}[machines.bare]{bare.replace(sys.executable, '/nowhere/python')}")
        strange, closed = (reached.machines[name].sshd.directory for name in ("strange", "closed"))
        port = reached.machines["strange"].sshd.port
        other = (closed / "host.pub").read_text()
        (strange / "known").write_text(f"[{reached.machines['strange'].address}]:{port} {other}")
        (closed / "authorized").write_text("")
        with reached.config.open("a") as config:
            config.write("Host gone\n HostName 203.0.113.1\n ConnectTimeout 1\n")
        # A machine that no route leads to is tried eight times, with growing pauses: 110 s and more.
        done = guestmark(*made.arguments(), env={"GUESTMARK_SSH": reached.client}, timeout=400)
        states = {run.plan.name: run.state.value for run in made.runs()}
    assert done.status == 1
    assert states == {"small": "complete"}
    for line in (
        "gave up on strange: strange has a different host key than the one in known_hosts",
        "gave up on closed: closed does not accept a login without a password",
        "gave up on bare: cannot find /nowhere/python",
        "gone: its worker has ended: gone ",
    ):
        assert line in done.stderr
    assert "Traceback" not in done.stderr


@needs_engine
@pytest.mark.long
def test_who_is_waited_for_is_told(guestmark: CommandLine, tmp_path: Path) -> None:
    """A machine that somebody else measures on is waited for, and the fleet's coordinator says so."""
    made = lab(guestmark, str(tmp_path / "ledger.sqlite"), [HERE], levels='"0"', blocks=1)
    lock = guestmark.folder / f"lock-{HERE}"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with guestmark.running(*made.arguments()) as process:
            assert process.stderr is not None
            said = b""
            while b"waiting for" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            fcntl.flock(held, fcntl.LOCK_UN)
            _, more = process.communicate(timeout=40)
    assert b"here: waiting for this machine, which is in use by another guestmark" in said
    assert process.returncode == 0, more


@needs_engine
@pytest.mark.long
@pytest.mark.parametrize("name", [HERE, "lab1"])
def test_nothing_is_left_when_the_coordinator_is_killed(
    guestmark: CommandLine, server: Server, reached: Sshd, name: str
) -> None:
    """Neither the engine's directories nor the worker's, nor those of the guestmark that measures in it."""
    # Both cases of this test may run at the same time.
    pause = "31.7" if name == HERE else "31.8"
    made = lab(guestmark, server.url, [name], levels=f'"{pause}"', blocks=1)
    scratch = guestmark.folder / f"scratch-{name}"
    with guestmark.running(*made.arguments(), env={"GUESTMARK_SSH": reached.client}) as process:
        assert wait_until(lambda: processes_with(f"sleep {pause}") or processes_with(pause), 60)
        assert list(scratch.glob("guestmark-fleet-*"))
        process.kill()
        process.wait()
        assert wait_until(lambda: not list(scratch.glob("guestmark-*")), 20), list(scratch.iterdir())
    guestmark.assert_nothing_left()


@pytest.mark.long
def test_doctor_asks_all_machines_and_tells_which_cannot_be_used(
    guestmark: CommandLine, reached: Sshd, tmp_path: Path
) -> None:
    made = lab(guestmark, "", ["lab1", "lab2"])
    made.machines.write_text(
        made.machines.read_text()
        + '\n[machines.gone]\ncommand = ["/nowhere/guestmark"]\n'
        + f'[machines.old]\nssh = "old"\ncommand = {json.dumps(_OLDER)}\n'
        + f'environment = {{PYTHONPATH = "{PACKAGES}"}}\n'
    )
    environment = {"GUESTMARK_SSH": reached.client}
    words = ("fleet", "doctor", "--machines", made.machines)
    told = guestmark(*words, "--json", "-", env=environment, timeout=150)
    assert told.status == 1
    machines = told.document()["machines"]
    assert set(machines) == {"lab1", "lab2", "gone", "old"}
    assert machines["old"]["error"].startswith(
        f"old has guestmark 0.1.0, but the fleet is run with guestmark {__version__}"
    )
    assert "is a file, which other machines cannot reach" in told.document()["ledger"]["error"]
    assert any(platform["name"] == "host" for platform in machines["lab2"]["platforms"])
    assert "nowhere" in machines["gone"]["error"]


def test_a_server_that_takes_too_few_connections_is_found_beforehand(server: Server, tmp_path: Path) -> None:
    with open_ledger(server.url) as ledger:
        small, large = find_connection_room(ledger, 4), find_connection_room(ledger, 200)
    assert small is not None
    assert large is not None
    assert small.is_enough
    assert (large.is_enough, large.most, large.needed) == (False, 60, 222)
    said, advice = explain_missing_room(large, 200)
    assert re.fullmatch(
        r"the ledger's server has 5\d of 60 connections left, and 200 machines need 222", said
    )
    advised = re.fullmatch(r"set max_connections = (\d+) in its postgresql\.conf and restart it", advice)
    assert advised
    assert 60 - large.free + 222 < int(advised[1]) < 270
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        assert find_connection_room(ledger, 200) is None


def said_at_its_end(member: labs.LabMachine) -> LinkEnd:
    """What a worker says that ends by itself."""
    link = WorkerLink(
        member, WorkerAddresses(1, "none.sqlite"), {"client.key_secret": ""}, ["--uid", f"{member.name}.1"]
    )
    try:
        assert wait_until(lambda: not link.is_running(), 30)
        return link.describe_end()
    finally:
        link.close()


@needs_engine
def test_a_machine_without_room_for_the_engine_says_so() -> None:
    """What is wrong and what to do come together, and it is not tried again."""
    here = {"PYTHONPATH": str(PACKAGES), "TMPDIR": "/proc"}
    member = labs.LabMachine("full", command=(sys.executable, "-m", "guestmark"), environment=here)
    said = said_at_its_end(member)
    assert re.match(
        r"the engine's files cannot be written to /proc: .+; free some space there, or set", said.text
    )
    assert said.final


@needs_engine
def test_a_machine_with_another_version_says_so() -> None:
    member = labs.LabMachine("old", command=_OLDER, environment={"PYTHONPATH": str(PACKAGES)})
    said = said_at_its_end(member)
    assert said.text == (
        f"old has guestmark 0.1.0, but the fleet is run with guestmark {__version__}; install the same version of "
        "guestmark, with its extra fleet, on all machines of the lab"
    )
    assert said.final


def test_the_view_has_a_line_for_each_machine() -> None:
    member = labs.LabMachine("lab1")
    running = MachineState(member, MachineProgress("lab1", blocks=3, trials=12, failed=1, lost=2))
    (line,) = render_states([running], 22)
    assert " ".join(line.split()) == "lab1 3 blocks 12 trials 1 failed 2 lost not connected"
    running.gave_up = "lab1 does not let us in"
    assert render_states([running], 22)[0].endswith("lab1 does not let us in")
    ended = MachineState(member, MachineProgress("lab1", state="complete", blocks=1, trials=1))
    (line,) = render_states([ended], 22)
    assert line.split() == ["lab1", "1", "block", "1", "trial", "complete"]
    going = MachineState(member, MachineProgress("lab1"))
    many = render_states([ended] * 30 + [going] * 2, 10)
    assert len(many) == 10
    assert sum("complete" in line for line in many) == 7  # those that are at work come first
    assert many[-1] == "and 23 machines more, 23 of them done"


def test_what_is_noted_stays_above_the_view(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    view = FleetProgress(quiet=False)
    monkeypatch.setattr(view, "_redraws", True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((30, 24)))
    fleet = SimpleNamespace(states={"lab1": MachineState(labs.LabMachine("lab1"), MachineProgress("lab1"))})
    view.update(cast(Fleet, fleet))
    view.note("lab1: its worker has ended")
    view.update(cast(Fleet, fleet))
    first, after = capfd.readouterr().err.split("\x1b[1A\r\x1b[J")  # what was drawn is taken away
    assert first.startswith("\r\x1b[Klab1 ")
    assert max(map(len, first.removeprefix("\r\x1b[K").splitlines())) < 30
    assert after.startswith("guestmark: lab1: its worker has ended\n\r\x1b[Klab1 ")


def test_an_attempt_is_made_once(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        cell = PLAN.cells[0].id
        attempts, others_ = TrialAttempts(ledger, run_id, "lab1"), TrialAttempts(ledger, run_id, "lab2")
        token = attempts.begin_trial(cell, 0, 0)
        with pytest.raises(LedgerError, match="it had already begun"):
            others_.begin_trial(cell, 0, 0)
        attempts.store_trial(trial(0), token)
        assert count_refused_attempts(ledger, run_id) == 1
        assert record_lost_attempts(ledger, run_id, "gone") == 0


def test_what_was_lost_is_not_stored_afterwards(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        cell = PLAN.cells[0].id
        attempts = TrialAttempts(ledger, run_id, "lab1")
        token = attempts.begin_trial(cell, 0, 0)
        assert record_lost_attempts(ledger, run_id, "it was silent") == 1
        with pytest.raises(LedgerError, match="recorded as lost"):
            attempts.store_trial(trial(0), token)
        (kept,) = ledger.load_run(run_id).trials
    assert (kept.status, kept.reason) == (TrialStatus.LOST, "lab1: it was silent")


def test_a_trial_that_was_measured_without_its_attempt_settles_it(tmp_path: Path) -> None:
    """Its worker was killed, and the run then resumed as a whole."""
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        TrialAttempts(ledger, run_id, "lab1").begin_trial(PLAN.cells[0].id, 0, 0)
        ledger.store_trial(run_id, trial(0))
        for _ in range(2):
            assert record_lost_attempts(ledger, run_id, "gone") == 0
        assert [kept.status for kept in ledger.load_run(run_id).trials] == [TrialStatus.OK]


def test_a_block_is_compared_where_it_was_begun() -> None:
    """A machine of a class was lost in it, and another one, half as fast, finished it."""
    run = host_uml_tcg(blocks=8)
    trials = []
    for number, each in enumerate(run.trials):
        there = each.block == 3 and each.cell_id == "tcg"
        fact = MeasuredOn(machine="lab2" if there else "lab1")
        slower = replace(each.measurements[0], value=each.measurements[0].value * 9)
        held = (slower, *each.measurements[1:]) if there else each.measurements
        trials.append(
            replace(
                each,
                facts=add_fact(each.facts, fact),
                measurements=held,
                started_at=float(number if not there else 999),
            )
        )
    (tcg,) = [result for result in analyse_run(run.plan, trials).cells if result.cell.id == "tcg"]
    assert [trial.block for trial in tcg.trials] == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("postgresql:///guestmark", [7, 5432]),
        ("postgresql://localhost:5433/g", [7, 5433]),
        ("postgresql:///g?host=127.0.0.1&port=5434", [7, 5434]),
        ("postgresql://lab.corp/g", [7]),
        ("/somewhere/ledger.sqlite", [7]),
    ],
)
def test_a_server_on_this_host_is_reached_through_the_connection(
    url: str, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    assert WorkerAddresses(7, url).list_forwarded_ports() == ports


def test_a_lab_with_mistakes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('[machines.a]\nssh = "-oProxyCommand=x"\nklass = "b"\n')
    with pytest.raises(UsageError) as told:
        labs.read_lab(str(file))
    assert "unknown key 'klass'" in f"{told.value.message} {told.value.hint}"
    file.write_text('[machines.a]\nssh = "-oProxyCommand=x"\n[machines.b]\n[machines.c]\n')
    with pytest.raises(UsageError) as told:
        labs.read_lab(str(file))
    assert "is not an ssh destination" in f"{told.value.message} {told.value.hint}"
    assert "both this machine" in f"{told.value.message} {told.value.hint}"


def _found(ratio: float, reach: float = 0.02) -> PastRatio:
    return PastRatio("run", 0.0, ratio, ratio * (1 - reach), ratio * (1 + reach), 10)


def test_machines_of_a_class_are_pooled_and_a_stranger_is_named() -> None:
    alike = {f"lab{number}": _found(2.0 * (1 + 0.002 * number)) for number in range(6)}
    assert pool_machines({name: alike[name] for name in ("lab0", "lab1")}) is None
    made = pool_machines(alike)
    assert made is not None
    assert made.ci[0] < 2.01 < made.ci[1]
    assert made.different == ()
    made = pool_machines({**alike, "odd": _found(3.0)})
    assert made is not None
    assert made.different == ("odd",)
    assert made.prediction[0] < made.ci[0] < made.ci[1] < made.prediction[1]


def test_a_class_is_covered_by_its_interval() -> None:
    chance = random.Random(4)
    held = 0
    for _ in range(400):
        found = {}
        for number in range(5):
            own = 2.0 * chance.lognormvariate(0, 0.03)
            found[str(number)] = _found(own * chance.lognormvariate(0, 0.01), 0.0226)
        made = pool_machines(found)
        assert made is not None
        held += made.ci[0] <= 2.0 <= made.ci[1]
    assert held >= 370  # of 380 on average


def test_a_machine_that_drifts_is_told_from_one_that_varies() -> None:
    chance = random.Random(5)
    steady = [chance.lognormvariate(0, 0.02) for _ in range(20)]
    assert detect_machine_drift(steady) is None
    moved = detect_machine_drift([value * (1 + 0.01 * at) for at, value in enumerate(steady)])
    assert moved == pytest.approx(0.19, abs=0.05)


@needs_engine
@pytest.mark.long
def test_machines_of_a_class_divide_the_blocks_of_a_plan(guestmark: CommandLine, tmp_path: Path) -> None:
    names = ["lab1", "lab2", "lab3", "lab4"]
    with network(tmp_path, names) as reached, postgresql(reached.address) as server:
        made = lab(guestmark, server.url, names, blocks=12, levels='"0.61", "1.21"', whole=False)
        done = guestmark(*made.arguments(), env={"GUESTMARK_SSH": reached.client}, timeout=240)
        assert done.status == 0, done.stderr
        (run,) = made.runs()
        assert exactly_once([run], 12) == 0
        blocks = Counter(find_machine(trial.facts) for trial in run.trials if trial.order == 0)
        assert set(blocks) == set(names)
        assert max(blocks.values()) <= 5, blocks
        trials = sum(trial.duration_s for trial in run.trials)
        span = max(each.started_at + each.duration_s for each in run.trials) - min(
            each.started_at for each in run.trials
        )
        print(f"{blocks}; {span:.1f} s of {trials:.1f} s, {span / trials:.2f}")
        assert "class alike" in done.stdout
        assert "If machines shared a run" in done.stdout


def test_a_ledger_that_is_away_for_ten_minutes_gives_no_machine_up(tmp_path: Path) -> None:
    member = labs.LabMachine("lab1")
    order = FleetOrder("fleet-1", "", "", 1.0, {}, labs.dump_lab((member,)))
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        fleet = Fleet(order, [member], ledger, "", tell=lambda _text: None)
        state = fleet.states["lab1"]
        for away, since_s, given_up in ((True, 640.0, False), (False, 100.0, False), (True, 800.0, True)):
            state.trouble_since = time.monotonic() - since_s
            future: Future[bytes] = Future()
            future.set_result(msgspec.json.encode(MachineProgress("lab1", error="no answer", ledger=away)))
            fleet._handle_result(future)
            assert bool(state.gave_up) == given_up, (away, since_s)


def test_doctor_says_why_a_platform_cannot_be_used_and_what_a_class_shares() -> None:
    host = {"processor": {"model": "one"}, "kernel": {"release": "6.1"}}
    platforms = [
        {"name": "host", "usable": True, "reason": ""},
        {"name": "tcg", "usable": False, "reason": "qemu-system-x86_64\nis not installed"},
    ]
    answer = {"platforms": platforms, "host": host, "fleet": {"guestmark": "1.0"}, "tools": {}}
    assert "unusable: tcg, qemu-system-x86_64 is not installed" in fleet_doctor._describe_machine(answer)
    other = {**answer, "host": {"processor": {"model": "one"}, "kernel": {"release": "6.2"}}}
    members = [labs.LabMachine(name, kind="r730") for name in ("a", "b", "c", "d")]
    answers = {"a": answer, "b": answer, "c": other, "d": {"error": "gone"}}
    told = fleet_doctor._describe_classes(
        members, answers, fleet_doctor._find_class_differences(members, answers)
    )
    assert told[:2] == ["class r730", "  alike: a, b; different (see above): c"]
    assert "3 machines share 24 blocks in about 1/3 of the time, with intervals up to 2.1 times" in told[3]


@pytest.mark.long
@needs_engine
def test_a_command_is_measured_on_the_machines_of_a_lab(guestmark: CommandLine, tmp_path: Path) -> None:
    made = lab(guestmark, str(tmp_path / "ledger.sqlite"), [HERE])
    words = ("--machines", made.machines, "--ledger", made.ledger, "--blocks", "2")
    done = guestmark("fleet", "exec", *words, "--", "sh", "-c", 'sleep "0.01"', timeout=90)
    assert done.status == 0, done
    (run,) = made.runs()
    assert exactly_once([run], 2) == 0
    assert run.plan.cells[0].workload.label == """sh -c 'sleep "0.01"'"""
    assert guestmark("fleet", "exec", "--machines", made.machines).status == 2
