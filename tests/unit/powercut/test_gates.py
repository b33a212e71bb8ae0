"""Gates about power cuts: which words each refuses, of which cells, and what a command line exits with."""

import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from guestmark.core.errors import ExitStatus, GateStatus, UsageError
from guestmark.core.findings import Control, Durability, Proof, Proven, Unsynced
from guestmark.core.gate import Loss, parse_gates, parse_limits
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan, Policy, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.report.sections.gate_outcomes import make_document
from guestmark.stats.analysis import analyse_run
from guestmark.stats.gates import Outcome, judge_gates
from tests.framework import made_facts
from tests.framework.command_line import CommandLine
from tests.framework.marks import long, thorough

WALL = Metric("wall_s", "s")
CELLS = tuple(
    Cell(name, WorkloadSpec("exec"), PlatformSpec.read(name), baseline=name == "host")
    for name in ("host", "tcg")
)
CAUGHT, MISSED = Control(name="no-flush", states=9, losing=5), Control(name="no-flush", states=9, losing=0)
WHOLE = Proven(
    word=Durability.PROVEN, why="", method="its own syncs", acknowledged=3, states=100, losing=0, repaired=0,
    controls=[CAUGHT], below=[], writes=9, flushes=3, run_s=0.0, judge_s=0.0, of_row=True, syncs=True,
)  # fmt: skip


def changed(**values: object) -> Proven:
    import msgspec

    return msgspec.structs.replace(WHOLE, **values)


def outcome(text: str, *proofs: Proven | None) -> Outcome:
    """Of a gate about the only cell, whose trials have these proofs."""
    cell = CELLS[0]
    trials = [
        Trial(
            cell.id, block, 0, TrialStatus.OK, measurements=(Measurement(WALL, 1.0, (1.0,)),),
            facts=made_facts.of(*([Proof(proven=proof)] if proof else [])),
        )
        for block, proof in enumerate(proofs)
    ]  # fmt: skip
    plan = Plan("p", (cell,), Policy(), (WALL,))
    (found,) = judge_gates(parse_gates([text], plan.cells, {"wall_s"}), analyse_run(plan, trials))
    json.dumps(make_document([found]), allow_nan=False)
    return found.outcome


KEPT, BROKEN, UNDECIDED = Outcome.KEPT, Outcome.BROKEN, Outcome.UNDECIDED
LEFT = [Unsynced("/disk/data", 4096)]


@pytest.mark.parametrize(
    ("proven", "lost", "part", "unproven"),
    [
        (WHOLE, KEPT, KEPT, KEPT),
        (changed(word=Durability.SYNCED_PART_PROVEN, unsynced=LEFT), KEPT, BROKEN, BROKEN),
        (changed(word=Durability.REACHED), KEPT, KEPT, BROKEN),  # such as a disk whose cache nobody knows
        (changed(word=Durability.REACHED, unsynced=LEFT), KEPT, BROKEN, BROKEN),
        (changed(word=Durability.REACHED, controls=[MISSED]), UNDECIDED, UNDECIDED, BROKEN),
        (changed(word=Durability.LOST, losing=7), BROKEN, BROKEN, BROKEN),
        (changed(word=Durability.MEMORY), UNDECIDED, UNDECIDED, BROKEN),
        (changed(word=Durability.UNKNOWN), UNDECIDED, UNDECIDED, UNDECIDED),
        (changed(word=Durability.NOTHING, states=0, controls=[]), UNDECIDED, BROKEN, BROKEN),
    ],
    ids=lambda value: str(value.word) if isinstance(value, Proven) else str(value),
)
def test_what_each_gate_refuses(proven: Proven, lost: Outcome, part: Outcome, unproven: Outcome) -> None:
    assert [outcome(word, proven) for word in Loss] == [lost, part, unproven]


def test_the_worst_trial_counts() -> None:
    assert outcome("lost", WHOLE, changed(word=Durability.LOST, losing=1), WHOLE) is BROKEN
    assert outcome("lost", WHOLE, changed(word=Durability.UNKNOWN)) is UNDECIDED


def test_a_row_without_a_proof_of_its_own_is_not_measured() -> None:
    assert outcome("lost", None) is Outcome.UNMEASURED
    assert (
        outcome("lost", changed(of_row=False)) is Outcome.UNMEASURED
    )  # what is proven of its disk is another thing


@pytest.mark.parametrize("text", ["lost", "tcg lost", "durability = lost", "tcg durability=lost", " lost "])
def test_how_a_gate_is_written(text: str) -> None:
    (gate,) = parse_gates([text], CELLS, {"wall_s"})
    assert gate.loss is Loss.LOST
    assert [cell.id for cell in CELLS if gate.selects_cell(cell)] == (
        ["tcg"] if "tcg" in text else ["host", "tcg"]
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="unknown cell or metric 'umk'"):
        parse_gates(["umk lost"], CELLS, {"wall_s"})
    with pytest.raises(UsageError, match="applies to the power cuts of a single run"):
        parse_limits(["lost"], CELLS, {"wall_s"})


def test_a_gate_without_power_cuts_is_refused_before_anything_runs(guestmark: CommandLine) -> None:
    done = guestmark("exec", "--on", "host", "--fail-if", "lost", "--", "true")
    assert done.status == ExitStatus.USAGE
    assert "this run cuts no power" in done.stderr
    assert "--prove" in done.stderr


RENAMES = "import os; f = os.open('t', os.O_CREAT | os.O_RDWR); os.write(f, b'x' * 5000); os.fsync(f)"
RENAMES += "; os.rename('t', 'n')"


@pytest.mark.skipif(os.getuid() != 0, reason="a loop device of this host takes root")
def test_a_build_fails_when_a_sync_goes_missing(guestmark: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    statuses, alerts = [], []
    for program in (RENAMES, f"{RENAMES}; os.fsync(os.open('.', os.O_RDONLY))"):
        done = guestmark(
            "powercut", "--on", "host", "--states", "20", "--fail-if", "part", "--junit", file, "--",
            "python3", "-I", "-S", "-c", program, timeout=120,
        )  # fmt: skip
        statuses.append(done.status)
        failures = ElementTree.parse(file).getroot().get("failures")
        assert failures == str(int(done.status == GateStatus.BROKEN)), done.stderr
        (measures,) = guestmark("export", "last", "-f", "bencher").document().values()
        alerts.append(measures["gate part"]["value"])
        statuses += [guestmark("gate", "last", "--fail-if", word).status for word in ("lost", "unproven")]
    kept, broken = GateStatus.KEPT, GateStatus.BROKEN
    assert statuses == [broken, kept, broken, kept, kept, kept]
    assert alerts == [1.0, 0.0]


STORE = """import os
def put(name, data):
    f = os.open(name + ".new", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    os.write(f, data)
    os.fsync(f)
    os.rename(name + ".new", name)
    os.fsync(os.open(".", os.O_RDONLY))
put("first", b"x" * 5000)
"""


def repository(folder: Path, commits: int, removed_at: int) -> Path:
    """A repository in which one commit removes the sync of a directory."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)

    folder.mkdir()
    git("init", "-q")
    for number in range(commits):
        text = (
            STORE if number < removed_at else STORE.replace('    os.fsync(os.open(".", os.O_RDONLY))\n', "")
        )
        (folder / "store.py").write_text(f"{text}# {number}\n")
        git("add", ".")
        git("commit", "-qm", f"commit {number}")
    return folder


@pytest.mark.skipif(os.getuid() != 0, reason="a loop device of this host takes root")
@pytest.mark.parametrize(
    ("commits", "removed_at"), [long(4, 2), long(16, 5), thorough(16, 15), thorough(16, 1)]
)
def test_the_commit_that_removed_a_sync_is_found(
    guestmark: CommandLine, tmp_path: Path, commits: int, removed_at: int
) -> None:
    made = repository(tmp_path / "repository", commits, removed_at)
    done = guestmark(
        "bisect", "--repo", made, "--good", f"HEAD~{commits - 1}", "--fail-if", "part", "--", "python3", "-I", "-S",
        "{build}/store.py", timeout=280,
    )  # fmt: skip
    assert done.status == GateStatus.KEPT, done.stderr
    assert f"commit {removed_at}: synced part proven" in done.stdout
    assert (
        subprocess.run(["git", "-C", made, "worktree", "list"], capture_output=True, check=True).stdout.count(
            b"\n"
        )
        == 1
    )


def test_a_check_without_a_gate_about_power_cuts_is_refused(guestmark: CommandLine, tmp_path: Path) -> None:
    made = repository(tmp_path / "repository", 2, 1)
    done = guestmark(
        "bisect",
        "--repo",
        made,
        "--good",
        "HEAD~1",
        "--fail-if",
        "> +2%",
        "--check",
        "true",
        "--",
        "true",
        "{build}",
    )
    assert done.status == ExitStatus.USAGE
    assert "--check requires a limit about power cuts" in done.stderr
