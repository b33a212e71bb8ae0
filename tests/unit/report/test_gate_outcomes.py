"""Gates: limits as typed, what constructed runs say of them, and what build servers and `git bisect` are told."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from guestmark.cli import exit_status
from guestmark.core.errors import UsageError
from guestmark.core.gate import Gate, parse_gates
from guestmark.core.model import Cell, Trial
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.report import ci_reports
from guestmark.report.document import make_result_document
from guestmark.report.sections.gate_outcomes import explain_outcome
from guestmark.stats import paired
from guestmark.stats.analysis import analyse_run
from guestmark.stats.compare import adjust_holm
from guestmark.stats.gates import ALPHA, JudgedGate, Outcome, combine_outcomes, judge_gates
from tests.framework.known import known
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import EXEC, constructed

CELLS = (
    Cell("host", EXEC, HOST, {}, True),
    Cell("uml", EXEC, PlatformSpec.read("uml")),
    Cell("tcg memory=1G", EXEC, PlatformSpec.read("tcg"), {"memory": "1G"}),
)
METRICS = {"wall_s", "user_s"}
CLOCKS = {"wall_s", "guest_wall_s"}


def two(ratio: float, *limits: str, blocks: int = 12, **changes: object) -> StoredRun:
    """A run in which uml takes `ratio` times the host's time, with these gates."""
    run = constructed([(CELLS[0], 1.0), (CELLS[1], ratio)], blocks=blocks, **changes)  # type: ignore[arg-type]
    return replace(run, plan=replace(run.plan, context=replace(run.plan.context, gates=limits)))


def judged(run: StoredRun, *limits: str) -> tuple[JudgedGate, ...]:
    metrics = {metric.name for metric in run.plan.metrics}
    return judge_gates(
        parse_gates(limits, run.plan.cells, metrics), analyse_run(run.plan, run.trials, run.unusable)
    )


@pytest.mark.parametrize(
    ("text", "words", "metric", "limit", "above"),
    [
        ("tcg wall_s > +5%", ("tcg",), "wall_s", 1.05, True),
        ("tcg memory=1G>5%", ("tcg", "memory=1G"), "", 1.05, True),
        ("> 0.5 %", (), "", 1.005, True),
        ("uml user_s < -3%", ("uml",), "user_s", 0.97, False),
        ("uml < 3%", ("uml",), "", 0.97, False),
        ("uml < +3%", ("uml",), "", 1.03, False),
        ("uml > x2.5", ("uml",), "", 2.5, True),
        ("uml > ×2.5", ("uml",), "", 2.5, True),
    ],
)
def test_limits_as_people_type_them(
    text: str, words: tuple[str, ...], metric: str, limit: float, above: bool
) -> None:
    (gate,) = parse_gates([text], CELLS, METRICS)
    assert gate == Gate(text.strip(), words, metric, pytest.approx(limit), above)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tcg wall_s", "is not a limit"),
        ("tcg > much", "is not a limit"),
        ("tcg > 5", "is not a limit"),
        ("tcg < -100%", "cannot be negative"),
        ("tcq > 5%", "unknown cell or metric 'tcq'"),
        ("tcg wal_s > 5%", "unknown cell or metric 'wal_s'"),
        ("uml memory=1G > 5%", "no cell matches"),
        ("host > 5%", "this is the baseline"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_gates([text], CELLS, METRICS)
    assert caught.value.hint


def test_one_cell_has_nothing_to_be_held_against() -> None:
    with pytest.raises(UsageError, match="only one cell"):
        parse_gates(["> 5%"], CELLS[:1], METRICS)


@pytest.mark.parametrize(
    ("ratio", "limit", "outcome"),
    [
        (1.10, "> +5%", Outcome.BROKEN),
        (1.00, "> +5%", Outcome.KEPT),
        (0.80, "> +5%", Outcome.KEPT),
        (1.05, "> +5%", Outcome.UNDECIDED),
        (0.90, "< -5%", Outcome.BROKEN),
        (1.00, "< -5%", Outcome.KEPT),
    ],
)
def test_what_is_shown_what_is_excluded_and_what_is_neither(
    ratio: float, limit: str, outcome: Outcome
) -> None:
    (found,) = judged(two(ratio), limit)
    low, high = known(found.ci)
    assert found.outcome is outcome
    compute_ratio_beyond_limit, within = (
        (low > 1.05, high < 1.05) if ">" in limit else (high < 0.95, low > 0.95)
    )
    # It decides just when the interval that is shown lies on one side.
    assert (compute_ratio_beyond_limit, within) == (outcome is Outcome.BROKEN, outcome is Outcome.KEPT)


@pytest.mark.parametrize("limit", ["> +5%", "< -5%"])
def test_what_a_gate_says_that_it_finds_is_found(limit: str) -> None:
    (found,) = judged(two(1.0), limit)
    assert found.outcome is Outcome.KEPT
    size = known(found.finds)
    assert (size > 1.05) if ">" in limit else (size < 0.95)
    (again,) = judged(two(size), limit)
    assert again.outcome is Outcome.BROKEN
    assert f"would find it broken at ×{size:.3f}"[:-1] in explain_outcome(found)
    assert "would find it broken" not in explain_outcome(again)
    (few,) = judged(two(1.0, blocks=5), limit)
    assert few.finds is None


def test_the_nearer_the_limit_the_more_blocks_it_takes() -> None:
    """To halve the distance takes four times as many blocks, a few less for the wide tails of few of them."""
    run = two(1.053)
    ratio = known(judged(run, "> +5%")[0].ratio)
    far, near = (judged(run, f"> x{ratio / (1 + away):.6f}")[0] for away in (0.0026, 0.0013))
    assert {far.outcome, near.outcome} == {Outcome.UNDECIDED}
    assert 3 < (known(near.blocks) + 12) / (known(far.blocks) + 12) < 5
    touching = judged(run, f"> x{ratio:.9f}")[0]
    assert touching.blocks is None
    assert "too near the limit" in touching.reason


def test_a_cell_that_failed_is_not_taken_for_a_slow_one() -> None:
    failing = {("uml", block) for block in range(12)}
    found = judged(two(1.0, failing=failing), "> +5%")
    assert [one.outcome for one in found] == [Outcome.UNMEASURED]
    assert "died by signal 11" in found[0].reason


def test_what_is_in_doubt_is_undecided_and_more_blocks_are_not_promised() -> None:
    hot = {("uml", block): {"throttled": 3} for block in range(12)}
    (found,) = judged(two(1.5, noise=hot), "> +5%")
    assert (found.outcome, found.blocks) == (Outcome.UNDECIDED, None)
    assert "throttl" in found.reason


def beside_others(
    ratio: float, limit: str, *, scatter: float = 0.1, share: float = 0.4, on: str = "host", blocks: int = 12
) -> JudgedGate:
    """Two builds that wait for processors now and then, so that wall times scatter and user times do not."""
    cells = (CELLS[0], Cell("new", EXEC, PlatformSpec.read(on)))
    load = {"foreign_s": share, "machine_processors": 1, "elapsed_s": 1.0}
    noise = {(cell.id, block): load for cell in cells for block in range(blocks)}
    run = constructed([(cells[0], 1.0), (cells[1], ratio)], noise=noise, blocks=blocks)
    chance = np.random.default_rng(3)

    def waited(trial: Trial) -> Trial:
        longer = float(np.exp(chance.normal(0, scatter)))
        return replace(
            trial,
            measurements=tuple(
                each if each.metric.name not in CLOCKS else replace(each, value=each.value * longer)
                for each in trial.measurements
            ),
        )

    return judged(replace(run, trials=tuple(map(waited, run.trials))), limit)[0]


def test_beside_other_programs_user_time_breaks_a_gate_that_wall_time_cannot_decide() -> None:
    found = beside_others(1.05, "> +2%")
    assert (found.outcome, found.metric) == (Outcome.BROKEN, "user_s")
    assert found.gate.limit == pytest.approx(1 + 0.02 / 0.9, rel=0.05)  # user time is 0.9 of wall time
    assert explain_outcome(found).endswith("by user time, as other programs used 40 % of the processors")
    assert beside_others(1.05, "wall_s > +2%").outcome is Outcome.UNDECIDED
    assert beside_others(1.05, "> +2%", share=0.0).outcome is Outcome.UNDECIDED
    assert beside_others(1.0, "> +2%").outcome is Outcome.UNDECIDED  # user time alone keeps nothing
    assert beside_others(1.05, "> +2%", scatter=0.001).metric == "wall_s"
    assert beside_others(1.05, "> +2%", on="tcg").metric == "wall_s"


def test_beside_other_programs_six_blocks_still_break_a_gate() -> None:
    found = beside_others(40, "> +50%", blocks=6)
    assert (found.outcome, found.metric) == (Outcome.BROKEN, "wall_s"), found
    assert found.finds is not None


def test_copies_that_differ_widen_what_a_gate_looks_at() -> None:
    copy = Cell("host#2", EXEC, HOST, null_of="host")
    quiet = constructed([(CELLS[0], 1.0), (CELLS[1], 1.05), (copy, 1.0)])
    apart = constructed([(CELLS[0], 1.0), (CELLS[1], 1.05), (copy, 1.1)])
    assert judged(quiet, "uml > +2%")[0].outcome is Outcome.BROKEN
    assert judged(apart, "uml > +2%")[0].outcome is Outcome.UNDECIDED
    assert judged(apart, "uml > +30%")[0].outcome is Outcome.KEPT


def test_several_gates_fail_together_no_more_often_than_one() -> None:
    """Holm: the smallest p counts m times, the next m - 1 times, and none less than one before it."""
    assert adjust_holm(np.array([0.01, 0.04, 0.03, 0.005])).tolist() == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert adjust_holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    assert adjust_holm(np.array([])).size == 0
    one, *_ = judged(two(1.10, blocks=6), "> +2%")
    many = judged(two(1.10, blocks=6), "> +2%", "user_s > +2%", "guest_wall_s > +2%")
    assert one.outcome is Outcome.BROKEN
    assert {each.outcome for each in many} == {Outcome.UNDECIDED}  # six blocks are too few for three claims
    assert known(many[0].blocks) >= 2


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_at_the_limit_itself_a_gate_errs_as_rarely_as_it_says(shift: float) -> None:
    """A ratio that is exactly the limit: neither claim may be made more often than its share."""
    generator = np.random.default_rng(7)
    d = generator.normal(shift, 0.02, (4000, 10))
    broken = kept = 0
    for walsh in paired.walsh_averages(d):
        beyond, within = paired.one_sided_signed_rank_p(walsh, shift)
        broken += beyond <= ALPHA
        kept += within <= ALPHA
    assert 0.01 < broken / 4000 < ALPHA + 0.006
    assert 0.01 < kept / 4000 < ALPHA + 0.006


def test_together_gates_are_as_good_as_the_worst_of_them() -> None:
    def of(*outcomes: Outcome) -> Outcome:
        gate = Gate("", (), "", 1.05, True)
        return combine_outcomes([JudgedGate(gate, "uml", "wall_s", outcome) for outcome in outcomes])

    assert of() is Outcome.KEPT
    assert of(Outcome.KEPT, Outcome.UNDECIDED) is Outcome.UNDECIDED
    assert of(Outcome.UNDECIDED, Outcome.BROKEN) is Outcome.BROKEN
    assert of(Outcome.BROKEN, Outcome.UNMEASURED, Outcome.KEPT) is Outcome.UNMEASURED


def test_the_document_says_what_became_of_gates() -> None:
    (told,) = make_result_document(two(1.10, "uml wall_s > +5%"))["gates"]
    assert (told["gate"], told["cell"], told["outcome"]) == ("uml wall_s > +5%", "uml", "broken")
    assert told["ci"][0] < told["ratio"] < told["ci"][1]
    assert make_result_document(two(1.10))["gates"] == []


def test_build_servers_read_every_outcome() -> None:
    failing = {("uml", block) for block in range(12)}
    runs = (two(1.0), two(1.1), two(1.05), two(1.0, failing=failing))
    found = [one for run in runs for one in judged(run, "> +5%")]
    suite = known(ElementTree.fromstring(ci_reports.make_junit(found, runs[0])).find("testsuite"))
    numbers = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert numbers == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    kinds = [next(iter(case)).tag for case in suite.iter("testcase")]
    assert kinds == ["system-out", "failure", "skipped", "error"]
    summary = ci_reports.make_summary(found, runs[0])
    assert [line.split()[1] for line in summary.splitlines() if line.startswith("| ")][2:] == [
        "✅", "❌", "❔", "💥",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("gates") / "ledger.sqlite"
    run = two(1.053, "uml wall_s > +5%")
    with open_ledger(path) as opened:
        run_id = opened.create_run(run.plan, {}, run.seed)
        for trial in run.trials:
            opened.store_trial(run_id, trial)
    return str(path)


def gate(ledger: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return guestmark("gate", "last", *options, GUESTMARK_LEDGER=ledger, COLUMNS="100", **variables)


def test_a_gate_ends_as_git_bisect_reads_it(ledger: str, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    undecided = gate(ledger, GITHUB_STEP_SUMMARY=str(summary))
    assert undecided.returncode == 125
    assert "undecided uml wall_s > +5%" in undecided.stdout
    assert "more block" in undecided.stdout
    assert "| ❔ undecided | `uml wall_s > +5%` |" in summary.read_text()
    broken = gate(ledger, "--fail-if", "uml > +2%", "--json", "-", "--junit", str(tmp_path / "junit.xml"))
    assert broken.returncode == 1
    assert [told["outcome"] for told in json.loads(broken.stdout)["gates"]] == ["broken"]
    assert (tmp_path / "junit.xml").read_bytes().startswith(b"<?xml")


def test_no_mistake_is_taken_for_a_slow_program(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong command line has its usual status, but not where git would read it as a bad commit."""
    folder = tmp_path / "repository"
    linked = tmp_path / "linked"
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for number in "123":
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", number], check=True)
    subprocess.run([*git, "worktree", "add", "-q", "-b", "other", str(linked)], check=True)
    for inside in (folder, linked):
        monkeypatch.chdir(inside)
        for wrong in (2, 130):
            assert gate(ledger, "--fail-if", "umk > +2%").returncode == wrong
            assert gate(ledger, "--no-such-option").returncode == wrong
            assert guestmark("gate", "nothing", GUESTMARK_LEDGER=ledger).returncode == 131
            subprocess.run(["git", "bisect", "start", "HEAD", "HEAD~2"], check=True, capture_output=True)


def test_a_program_that_crashes_now_and_then_meets_no_limit() -> None:
    """Its runs that ended well are as fast as the host's; a limit that they break is broken all the same."""
    failing = [("uml", block) for block in range(0, 14, 2)]
    (held,) = judged(two(1.0, blocks=14, failing=failing), "uml > +50%")
    assert (held.outcome, held.n) == (Outcome.UNDECIDED, 7)
    assert held.reason == "uml: 7 of 14 trials failed: died by signal 11"
    (beyond,) = judged(two(3.0, blocks=14, failing=failing), "uml > +50%")
    assert beyond.outcome is Outcome.BROKEN
    (base,) = judged(two(1.0, blocks=14, failing=[("host", 1)]), "uml > +50%")
    assert base.outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["exec", "--fail-if", "> 5%", "--", "true"], True),
        (["exec", "--fail-if=> 5%", "--", "true"], True),
        (["exec", "--", "program", "--fail-if", "x"], False),
        (["compare", "a", "b", "--fail-above", "5%"], True),
        (["gate"], True),
        (["show", "gate"], False),
    ],
)
def test_only_commands_with_gates_end_as_gates_do(arguments: Sequence[str], asked: bool) -> None:
    assert exit_status.has_gate_on_command_line(arguments) is asked
