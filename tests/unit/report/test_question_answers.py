"""Questions of a plan: any two cells are compared, and the last sentences answer them or say what is missing."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from guestmark.core.errors import UsageError
from guestmark.core.findings import Durability, Proof, Proven, add_fact
from guestmark.core.metric import Better, Metric
from guestmark.core.model import (
    Cell,
    CellStatus,
    Published,
    PublishedFigure,
    Question,
    QuestionKind,
    WorkloadSpec,
)
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger import codec
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page, Part, Section
from guestmark.page.sentence_names import name_apart
from guestmark.page.text import join_plain_text
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.report.document import make_result_document
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.render.terminal import print_page
from guestmark.report.sections.question_answers import make_nodes
from guestmark.report.sections.ranking_answers import describe_ranking
from guestmark.stats.analysis import CellResult, analyse_run
from guestmark.stats.compare import Verdict
from guestmark.stats.pairwise import compare_pairs
from guestmark.stats.questions import (
    Breakdown,
    PairAnswer,
    QuestionAnswer,
    Ranking,
    answer_plan_questions,
    average_shares,
    have_alike_shares,
)
from tests.framework.known import a, known
from tests.framework.runs import constructed

WRITE = WorkloadSpec("filewrite", {}, "sequential write", key="write")
THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)
BEST = Question("Which filesystem is fastest?", QuestionKind.BEST, per=("platform",))
EXT3 = Question(
    "Is ext3 slower?",
    QuestionKind.COMPARE,
    compare={"filesystem": ("ext3",)},
    against={"filesystem": ("ext4",)},
)
THEN = Published(
    "then", "throughput", "MB/s", "throughput",
    (PublishedFigure({"filesystem": "ext4"}, 29.6), PublishedFigure({"filesystem": "ext3"}, 7.6)),
)  # fmt: skip


def run_of(ratios: Mapping[str, float | None], *questions: Question, blocks: int = 12) -> StoredRun:
    """Filesystems with the time that each takes, measured as a rate."""
    cells = [
        (Cell(name, WRITE, PlatformSpec.read("tcg"), {"filesystem": name}, name == "ext2"), ratio)
        for name, ratio in ratios.items()
    ]
    run = constructed(cells, blocks=blocks)
    trials = tuple(
        replace(
            trial,
            measurements=tuple(
                replace(
                    each, metric=THROUGHPUT, value=1e8 / each.value, iterations=(1e8 / each.iterations[0],)
                )
                for each in trial.measurements
                if each.metric.name == "wall_s"
            ),
        )
        for trial in run.trials
    )
    plan = replace(run.plan, metrics=(THROUGHPUT,), questions=questions)
    return replace(run, plan=plan, trials=trials)


def ranked(run: StoredRun) -> Ranking:
    (answer,) = answer_plan_questions(analyse_run(run.plan, run.trials, run.unusable))
    (finding,) = answer.findings
    return a(Ranking, finding)


def sentences(run: StoredRun) -> list[str]:
    """As every format draws them."""
    (question,) = make_result_document(run)["questions"]
    return [str(sentence) for sentence in question["sentences"]]


def test_a_choice_is_answered_by_how_far_apart_the_best_can_be() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 0.8, "xfs": 0.5}, BEST)
    found = ranked(run)
    near, far = found.cells[1], found.cells[2]
    undecided = replace(
        found.against_best[near.cell.id],
        verdict=Verdict.INCONCLUSIVE,
        alike=False,
        ratio=0.97,
        ci=(0.92, 1.04),
    )
    bounded = replace(found, contenders=(near,), against_best={**found.against_best, near.cell.id: undecided})
    assert bounded.answered
    assert join_plain_text(describe_ranking(bounded, brief=True)).endswith(" leads; 1 within 8.7 %")
    # Two cells without a common block are never compared.
    uncompared = replace(bounded, against_best={})
    assert not uncompared.answered
    assert join_plain_text(describe_ranking(uncompared, brief=True)).endswith(" leads; 1 open")
    wide = replace(undecided, ci=(0.6, 1.04))
    both = replace(
        bounded,
        contenders=(near, far),
        against_best={**bounded.against_best, far.cell.id: wide},
    )
    assert not both.answered
    assert join_plain_text(describe_ranking(both, brief=True)).endswith(" leads; 1 within 8.7 %, 1 open")


def test_the_best_is_found_among_cells_that_are_not_the_baseline() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 0.8, "xfs": 0.5}, BEST)
    found = ranked(run)
    assert known(found.best).cell.id == "xfs"
    assert found.contenders == ()
    assert found.answered
    (said,) = sentences(run)
    assert "xfs (" in said
    assert "is fastest; behind it: ext4 ×0.6" in said


def test_cells_that_are_alike_have_no_fastest() -> None:
    (said,) = sentences(run_of({"ext2": 2.0, "ext3": 1.0, "ext4": 1.0}, BEST))
    assert " leads; typical run like it: ext" in said
    assert "behind it: ext2 ×" in said
    assert "is fastest" not in said


def test_cells_that_hardly_differ_are_not_ranked() -> None:
    found = ranked(run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 1.001}, BEST))
    assert {known(found.best).cell.id, *(result.cell.id for result in found.contenders)} == {"ext2", "ext4"}
    assert "ext3" in found.against_best


def test_too_few_blocks_are_said_to_be_missing() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4}, BEST, blocks=3)
    assert not ranked(run).answered
    (said,) = sentences(run)
    assert "Reason: fewer than 6 blocks" in said


@pytest.mark.parametrize("baseline", ["ext2", "xfs"])
def test_a_pair_with_the_baseline_has_the_verdict_of_its_row(baseline: str) -> None:
    """The table and the answer adjust over different pairs, and would say two things of one."""
    run = run_of({"ext2": 1.0, "ext3": 1.01, "ext4": 0.8, "xfs": 0.5, "btrfs": 0.52}, BEST)
    cells = tuple(replace(cell, baseline=cell.id == baseline) for cell in run.plan.cells)
    run = replace(run, plan=replace(run.plan, cells=cells))
    analysis = analyse_run(run.plan, run.trials, run.unusable)
    pairs = [(first.id, second.id) for first in cells for second in cells if first is not second]
    found = compare_pairs(pairs, THROUGHPUT, analysis)
    rows = {result.cell.id: result.comparison for result in analysis.cells}
    for cell in cells:
        if not cell.baseline:
            row, turned = found[cell.id, baseline], found[baseline, cell.id]
            assert row == rows[cell.id]["throughput"]
            assert known(turned.ratio) == pytest.approx(1 / known(row.ratio))
            assert known(turned.ci) == pytest.approx(tuple(1 / end for end in reversed(known(row.ci))))
            assert {row.verdict, turned.verdict} in (
                {Verdict.FASTER, Verdict.SLOWER}, {Verdict.NO_DIFFERENCE}, {Verdict.INCONCLUSIVE},
            )  # fmt: skip
    assert found["xfs", "ext2"].verdict is Verdict.FASTER
    assert found["ext2", "xfs"].verdict is Verdict.SLOWER


def test_levels_of_different_factors_are_named_with_their_factor() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 0.8})
    levels = {"ext2": {"thp": "on"}, "ext3": {"prealloc": "on"}, "ext4": {"thp": "off"}}
    asked = [
        Question(
            "What?",
            QuestionKind.COMPARE,
            compare={name: (level,)},
            against={"thp": ("on",)},
        )
        for name, level in (("prealloc", "on"), ("thp", "off"))
    ]
    cells = tuple(replace(cell, factors=levels[cell.id]) for cell in run.plan.cells)
    run = replace(run, plan=replace(run.plan, cells=cells, questions=tuple(asked)))
    (other,), (same,) = (question["sentences"] for question in make_result_document(run)["questions"])
    assert ": prealloc=on is ×0.7" in str(other)
    assert " of thp=on in " in str(other)
    assert ": off is ×1.2" in str(same)
    assert " of on in " in str(same)


@pytest.mark.parametrize(
    ("guests", "called"),
    [
        ([{"memory": "1G", "smp": "2"}, {"memory": "2G", "smp": "2"}], ["host", "tcg 1G", "tcg 2G"]),
        (
            [{"memory": "1G", "smp": "1"}, {"memory": "2G", "smp": "2"}],
            ["host", "tcg memory=1G smp=1", "tcg memory=2G smp=2"],
        ),
        ([{"memory": "1G", "smp": "2"}], ["host", "tcg"]),
    ],
    ids=["one factor", "two factors", "none"],
)
def test_a_level_that_all_share_who_have_it_tells_none_apart(
    guests: Sequence[Mapping[str, str]], called: Sequence[str]
) -> None:
    cells = [Cell("host", WRITE, PlatformSpec.read("host"), {}, True)]
    cells += [Cell(f"tcg{at}", WRITE, PlatformSpec.read("tcg"), each) for at, each in enumerate(guests)]
    run = constructed([(cell, 1.0) for cell in cells], blocks=2)
    assert list(name_apart(analyse_run(run.plan, run.trials).cells).values()) == called


def test_cells_that_were_not_measured_are_named() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "btrfs": None}, BEST)
    (said,) = sentences(run)
    assert "Not measured: btrfs" in said


def test_a_single_cell_is_no_answer() -> None:
    (said,) = sentences(run_of({"ext2": 1.0, "btrfs": None}, BEST))
    assert "only ext2 (" in said
    assert "was measured, so there is nothing to compare it with. Not measured: btrfs" in said


def test_a_workload_is_on_its_platform_in_words() -> None:
    ceiling = WorkloadSpec("filewrite", {}, "the host's ceiling", key="ceiling")
    cells = [(Cell("ceiling", ceiling, PlatformSpec.read("host"), {}, True), 1.0)]
    cells += [
        (Cell(name, WRITE, PlatformSpec.read("uml"), {"filesystem": name}), 3.0) for name in ("ext2", "xfs")
    ]
    asked = Question(
        "How far is it?", QuestionKind.COMPARE, "wall_s", compare={"workload": ("write",), "nested": ("no",)},
        against={"workload": ("ceiling",), "platform": ("host",)},
    )  # fmt: skip
    run = constructed(cells)
    said = sentences(replace(run, plan=replace(run.plan, questions=(asked,))))
    assert [text.partition(" is ×")[0] for text in said] == [
        "sequential write on uml, ext2", "sequential write on uml, xfs",
    ]  # fmt: skip
    assert all("of the host's ceiling on host in wall time: slower" in text for text in said)


def test_any_two_cells_are_compared_beside_the_published_figures() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 0.8}, EXT3)
    run = replace(run, plan=replace(run.plan, published=(THEN,)))
    (answer,) = answer_plan_questions(analyse_run(run.plan, run.trials, run.unusable))
    (finding,) = answer.findings
    against = a(PairAnswer, finding)
    ratio = known(against.comparison).ratio
    assert 0.55 < known(ratio) < 0.59
    (said,) = sentences(run)
    assert said.startswith("sequential write on tcg: ext3 is ×0.57")
    assert "slower; published ×0.26, the same direction, by another factor." in said


@pytest.mark.parametrize(
    ("ext4", "ext3", "published", "said"),
    [
        (0.8, 1.4, 0.57, "slower; published ×0.57, which agrees."),
        (1.4, 0.8, 1.75, "faster; published ×1.8, which agrees."),
        (0.8, 1.4, 0.26, "slower; published ×0.26, the same direction, by another factor."),
        (0.8, 1.4, 0.9, "slower; published ×0.9, the same direction, by another factor."),
        (1.4, 0.8, 2.6, "faster; published ×2.6, the same direction, by another factor."),
        (1.4, 0.8, 1.2, "faster; published ×1.2, the same direction, by another factor."),
        (0.8, 1.4, 1.5, "slower; published ×1.5, which is excluded here."),
        (0.8, 1.4, 1.001, "slower; published ×1, which is excluded here."),
        (1.4, 0.8, 0.5, "faster; published ×0.5, which is excluded here."),
        (1.4, 0.8, 0.999, "faster; published ×1, which is excluded here."),
        (1.0, 1.0, 1.001, "typical run alike; published ×1, which these blocks do not exclude."),
        (1.0, 1.0, 2.0, "typical run alike; published ×2, which is excluded here."),
        (1.0, 1.0, 0.5, "typical run alike; published ×0.5, which is excluded here."),
    ],
)
def test_the_words_beside_a_published_figure(ext4: float, ext3: float, published: float, said: str) -> None:
    run = run_of({"ext2": 1.0, "ext3": ext3, "ext4": ext4}, EXT3)
    figures = (
        PublishedFigure({"filesystem": "ext4"}, 10.0),
        PublishedFigure({"filesystem": "ext3"}, 10.0 * published),
    )
    run = replace(run, plan=replace(run.plan, published=(replace(THEN, figures=figures),)))
    assert sentences(run)[0].endswith(said)


@pytest.mark.parametrize("published", [0.5, 1.5])
def test_fewer_blocks_than_a_verdict_takes_exclude_no_published_figure(published: float) -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 0.8}, EXT3, blocks=2)
    figures = (
        PublishedFigure({"filesystem": "ext4"}, 10.0),
        PublishedFigure({"filesystem": "ext3"}, 10.0 * published),
    )
    run = replace(run, plan=replace(run.plan, published=(replace(THEN, figures=figures),)))
    assert sentences(run)[0].endswith(f"published ×{published:.2g}, which these blocks do not exclude.")


def test_one_block_says_nothing_of_a_published_figure() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "ext4": 0.8}, EXT3, blocks=1)
    run = replace(run, plan=replace(run.plan, published=(THEN,)))
    assert "; published ×0.26, which one block can neither confirm nor exclude." in sentences(run)[0]


@pytest.mark.parametrize(
    ("ext4", "ext3", "blocks", "said"),
    [
        (0.8, 1.4, 12, "holds for sequential write on tcg (×0.57, published ×0.26)."),
        (0.8, 3.1, 12, "holds for sequential write on tcg."),
        (1.4, 0.8, 12, "does not hold for sequential write on tcg."),
        (1.0, 1.0, 12, "does not hold for sequential write on tcg."),
        (0.8, 1.4, 2, "is undecided for sequential write on tcg."),
    ],
)
def test_a_published_conclusion_is_held_against_what_was_measured(
    ext4: float, ext3: float, blocks: int, said: str
) -> None:
    asked = replace(EXT3, conclusion="the filesystem makes the difference")
    run = run_of({"ext2": 1.0, "ext3": ext3, "ext4": ext4}, asked, blocks=blocks)
    assert len(sentences(run)) == 1  # nothing was published
    run = replace(run, plan=replace(run.plan, published=(THEN,)))
    assert sentences(run)[-1] == f"The published conclusion – {asked.conclusion} – {said}"


def test_what_is_proven_is_asked_for_and_nobody_looked() -> None:
    asked = replace(BEST, durability=("proven",))
    run = run_of({"ext2": 1.0, "ext3": 1.4}, asked)
    (said,) = sentences(run)
    assert "not answered" in said
    assert "the power was not cut in this run; --prove cuts it" in said


@pytest.mark.parametrize("form", [Format.JSON, Format.MARKDOWN, Format.HTML], ids=str)
def test_a_plan_of_power_cuts_alone_is_answered(form: Format) -> None:
    asked = Question("Is it safe?", QuestionKind.DURABILITY)
    cut = WorkloadSpec("powercut", {"method": "append", "disks": [{"logged": True}]}, "append, fsync")
    losing = {"safe": 0, "safe, too": 0, "lost": 238}
    cells = [(Cell(name, cut, PlatformSpec.read("tcg"), {}, name == "safe"), 1.0) for name in losing]
    run = constructed(cells, blocks=1)
    trials = []
    for trial in run.trials:
        lost = losing[trial.cell_id]
        proven = Proven(
            word=Durability.LOST if lost else Durability.PROVEN, why="", method="append", acknowledged=100,
            states=300, losing=lost, repaired=0, controls=[], below=[], writes=1, flushes=1, run_s=1.0, judge_s=1.0,
        )  # fmt: skip
        trials.append(replace(trial, facts=add_fact(trial.facts, Proof(proven=proven))))
    run = replace(run, plan=replace(run.plan, questions=(asked,)), trials=tuple(trials))
    text = export_run(run, form).decode()
    assert "safe, safe, too (each: 0 of 300 crash states lose acknowledged records)." in text
    assert "lost (238 of 300 crash states lose acknowledged records)." in text


@pytest.mark.parametrize("form", [Format.JSON, Format.MARKDOWN, Format.HTML], ids=str)
def test_every_report_draws_the_answer(form: Format) -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4, "xfs": 0.5}, BEST, EXT3)
    text = export_run(run, form).decode()
    assert "Which filesystem is fastest?" in text
    assert "is fastest" in text


def test_questions_are_kept_with_the_plan() -> None:
    run = run_of({"ext2": 1.0, "ext3": 1.4}, BEST, EXT3)
    stored = codec.load_json(codec.dump_json(run.plan), type(run.plan), "a plan")
    assert stored.questions == (BEST, EXT3)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('wants = "best"\nmetric = "speed"', "'speed' is not a metric"),
        ('wants = "compare"\ncompare = { workload = "w" }', "compare and against require each other"),
        ('wants = "parts"', "parts and wants = 'parts' require each other"),
        ('wants = "best"\nper = ["colour"]', "'colour' is neither"),
        ('wants = "best"\nwhere = { workload = "x" }', "unknown workload"),
        ('wants = "best"\ndurability = "surely"', "'surely' is not one of"),
        ('wants = "best"\nwhere = { nested = "maybe" }', "nested must be one of"),
    ],
)
def test_questions_that_cannot_be_meant_are_refused(table: str, said: str) -> None:
    text = f"""
schema = "guestmark-plan/1"
name = "p"
title = "t"
platforms = ["host"]
[workloads.w]
kind = "filewrite"
params.amount = "1M"
[[question]]
ask = "?"
{table}
"""
    with pytest.raises(UsageError, match="1 mistake") as caught:
        load_outline(text, "p.toml")
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_every_plan_but_a_race_asks_what_its_title_does() -> None:
    for name in library.list_plan_names():
        outline = load_outline(library.read_builtin(name), name)
        # A proof's own words answer its title, for each kind of machine: there is nothing to compare.
        assert outline.questions or outline.race or name == "clones", name
        assert json.dumps(codec.to_plain(outline.questions))


CLIENT, SERVER = Metric("client_share", "", Better.LOWER), Metric("server_share", "", Better.LOWER)


def breakdown(client: float, server: float, **levels: str) -> Breakdown:
    cell = Cell(" ".join(levels.values()), WorkloadSpec("netboot"), PlatformSpec.read("tcg"), levels)
    parts = sorted(((CLIENT, client), (SERVER, server)), key=lambda part: -part[1])
    return Breakdown(CellResult(cell, CellStatus.OK, "", (), {}, {}), tuple(parts))


def test_on_the_screen_rows_with_the_same_shares_are_one_line() -> None:
    found = (
        breakdown(0.620, 0.20, nic="e1000", console="vga"),
        breakdown(0.604, 0.21, nic="e1000", console="none"),
        breakdown(0.30, 0.64, nic="rtl8139", console="vga"),
        breakdown(0.36, 0.58, nic="rtl8139", console="none"),
    )
    asked = Question("Who is slow?", QuestionKind.PARTS, parts=("client_share", "server_share"))
    answer = QuestionAnswer(asked, found)
    brief = [line.strip() for line in drawn_lines(answer, brief=True)]
    assert brief == [
        "Who is slow?",
        "netboot e1000 (vga, none): client 61 %, server 20 %, neither 18 %",
        "netboot rtl8139 vga: server 64 %, client 30 %, neither 6.0 %",
        "netboot rtl8139 none: server 58 %, client 36 %, neither 6.0 %",
    ]
    whole = drawn_lines(answer, brief=False)
    assert len(whole) == 1 + len(found)


def drawn_lines(answer: QuestionAnswer, *, brief: bool) -> list[str]:
    page = Page("", "", (Section(Part.CONCLUSION, "", tuple(make_nodes([answer], brief=brief))),))
    out = io.StringIO()
    print_page(page, Console(file=out, width=200))
    return [line for line in out.getvalue().splitlines() if line.strip()]


@given(st.lists(st.tuples(st.floats(0.05, 0.45), st.floats(0.05, 0.45)), min_size=1, max_size=5))
def test_shares_are_alike_within_a_twentieth_of_the_whole(shares: list[tuple[float, float]]) -> None:
    found = [breakdown(*pair, nic=str(number)) for number, pair in enumerate(shares)]
    widest = max(max(values) - min(values) for values in zip(*shares, strict=True))
    if abs(widest - 0.05) > 1e-9:
        assert have_alike_shares(found) == (widest <= 0.05)
    mean = dict(average_shares(found))
    assert mean[CLIENT] == pytest.approx(sum(client for client, _ in shares) / len(shares))
    assert mean[SERVER] == pytest.approx(sum(server for _, server in shares) / len(shares))
