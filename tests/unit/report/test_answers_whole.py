"""Answers word by word, against files that were looked at: `GOLDEN=1 pytest` writes them anew.

A word of a verdict, a figure or a reason that changes is seen here, whatever else is asserted of it.
"""

import functools
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replaced
from rich.console import Console

from guestmark.core.findings import Durability, Fact, Proof, Proven
from guestmark.core.metric import Better, Metric
from guestmark.core.model import (
    Cell,
    LeftOut,
    Policy,
    Published,
    PublishedFigure,
    Question,
    QuestionKind,
    RunState,
    TrialStatus,
    WorkloadSpec,
)
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger.model import RunOrigin, StoredRun
from guestmark.page.nodes import Node, Note, NoteKind, Page, Part, Section
from guestmark.page.tables import Table
from guestmark.page.text import Span, Tone, join_plain_text
from guestmark.report.render.terminal import print_page
from guestmark.report.sections import conclusion, question_answers
from guestmark.report.sections import published as then_and_now
from guestmark.report.short_report import make_short_report
from guestmark.stats.analysis import Analysis, analyse_run
from guestmark.stats.compare import Comparison, Verdict
from guestmark.stats.questions import Ranking, answer_plan_questions, forecast_more_blocks
from tests.framework import GOLDEN, made_facts
from tests.framework.run_kinds import RUNS, with_facts
from tests.framework.runs import EXEC, constructed, host_uml_tcg

WRITE = WorkloadSpec("filewrite", {}, "sequential write", key="write")
READ = WorkloadSpec("fileread", {}, "sequential read", key="read")
WORKLOADS = {"write": WRITE, "read": READ}
PLATFORM = Question("Which filesystem is fastest on each platform?", QuestionKind.BEST, per=("platform",))
WORKLOAD = Question(
    "Which is fastest for each workload?", QuestionKind.BEST, per=("platform", "workload"), metric="wall_s"
)
WORKLOAD_OWN = replace(WORKLOAD, metric="")
EXT3 = Question(
    "Is ext3 slower?",
    QuestionKind.COMPARE,
    compare={"filesystem": ("ext3",)},
    against={"filesystem": ("ext4",)},
    conclusion="the filesystem makes the difference",
)
COLOURS = {Tone.FASTER, Tone.SLOWER, Tone.SAME, Tone.UNCLEAR, Tone.WARNING, Tone.ERROR}
PARTS = Question(
    "What does the time consist of?", QuestionKind.PARTS, parts=("system_s", "user_s", "guest_wall_s")
)
MEMORY = Question("Which takes the least memory?", QuestionKind.BEST, metric="max_rss_bytes")
SAFE = Question("What survives a power cut?", QuestionKind.DURABILITY)
Times = Mapping[str, float | None]


def filesystems(times: Mapping[str, Times], *asked: Question, blocks: int = 12, **spread: float) -> StoredRun:
    """Filesystems of each "workload platform"; those in `spread` scatter by so much from block to block."""
    cells = [
        (
            Cell(
                f"{workload.key} {platform} {name}",
                workload,
                PlatformSpec.read(platform),
                {"filesystem": name},
                number == 0,
                group=f"{workload.key} {platform}",
            ),
            time,
        )
        for workload, platform, some in (
            (WORKLOADS[key.split()[0]], key.split()[1], some) for key, some in times.items()
        )
        for number, (name, time) in enumerate(some.items())
    ]
    run = constructed(cells, blocks=blocks)
    chance = np.random.default_rng(3)
    trials = []
    for trial in run.trials:
        size = spread.get(trial.cell_id.split()[-1], 0.0)
        factor = float(np.exp(chance.normal(0, size)))
        measured = [
            replace(each, value=each.value * factor, iterations=(each.value * factor,))
            if each.metric.unit == "s"
            else each
            for each in trial.measurements
        ]
        trials.append(replace(trial, measurements=tuple(measured)))
    run = replace(run, trials=tuple(trials))
    return asking(run, *asked)


def asking(run: StoredRun, *asked: Question) -> StoredRun:
    return replace(run, plan=replace(run.plan, questions=asked))


def too_hot(cell: str) -> StoredRun:
    """The processor was slowed down in every trial of one cell, and eight blocks are not enough."""
    run = filesystems({"write tcg": {"ext4": 1.0, "ext3": 1.15}}, PLATFORM, EXT3, blocks=8, ext3=0.12)
    trials = (
        replace(trial, noise={"throttled": 3}) if trial.cell_id == cell else trial for trial in run.trials
    )
    return replace(run, trials=tuple(trials))


def published(run: StoredRun, *figures: tuple[str, float]) -> StoredRun:
    found = tuple(PublishedFigure({"filesystem": name}, value) for name, value in figures)
    then = Published("then", "wall_s", "s", "time", found)
    return replace(run, plan=replace(run.plan, published=(then,)))


def two_publications() -> StoredRun:
    """The first is of another metric, the second has one figure for both, and the third says what is asked."""
    run = filesystems({"write tcg": ALL}, EXT3)
    both = PublishedFigure({"workload": "write"}, 5.0)
    each = (PublishedFigure({"filesystem": "ext4"}, 5.0), PublishedFigure({"filesystem": "ext3"}, 8.75))
    then = [
        ("user_s", each[:1] * 2),
        ("system_s", (each[0], replace(each[1], value=1.0))),
        ("wall_s", (both,)),
        ("wall_s", each),
    ]
    found = tuple(Published("then", metric, "s", "time", figures) for metric, figures in then)
    return replace(run, plan=replace(run.plan, published=found))


def proven(word: Durability, losing: int = 0, *, of_row: bool = True) -> Proof:
    return Proof(
        proven=Proven(
            word=word, why="", method="append", acknowledged=100, states=300, losing=losing, repaired=0,
            controls=[], below=[], writes=1, flushes=1, run_s=1.0, judge_s=1.0, of_row=of_row,
        )
    )  # fmt: skip


def durable(*asked: Question) -> StoredRun:
    """One row was proven, two lose records, one claims to keep them, one disk was proven, one flushes in vain."""
    times = {"ext2": 1.0, "ext3": 1.4, "ext4": 0.8, "xfs": 0.5, "btrfs": 0.9, "f2fs": 0.6}
    facts: Mapping[str, Sequence[Fact]] = {
        "ext2": [proven(Durability.PROVEN)],
        "ext3": [proven(Durability.LOST, 1)],
        "ext4": [made_facts.flushes("yes")],
        "xfs": [proven(Durability.PROVEN, of_row=False)],
        "btrfs": [proven(Durability.LOST, 238)],
        "f2fs": [replaced(made_facts.flushes("no"), durability="lost")],
    }
    return with_facts(
        filesystems({"write tcg": times}, *asked),
        {f"write tcg {name}": some for name, some in facts.items()},
    )


SIZE: Mapping[str, tuple[float, float]] = {"ext4": (1.0, 1.5), "ext3": (2.0, 1.5)}


def sized(*asked: Question) -> StoredRun:
    """Two factors: filesystems, each in two sizes."""
    cells = [
        (
            Cell(
                f"{name} {size}",
                WRITE,
                PlatformSpec.read("tcg"),
                {"filesystem": name, "size": size},
                name == size,
            ),
            time,
        )
        for name, times in SIZE.items()
        for size, time in zip(("1G", "2G"), times, strict=True)
    ]
    return asking(constructed(cells), *asked)


def failing(*asked: Question) -> StoredRun:
    """One filesystem that fails in every block, and one in some."""
    cells = [
        (Cell(name, WRITE, PlatformSpec.read("tcg"), {"filesystem": name}, name == "ext2"), 1.0 + number)
        for number, name in enumerate(("ext2", "ext3", "ext4"))
    ]
    failed = {("ext3", block) for block in range(12)} | {("ext4", block) for block in range(3)}
    return asking(constructed(cells, failing=failed), *asked)


def unlabelled(*asked: Question) -> StoredRun:
    """Workloads that are called by their kind alone."""
    cells = [
        (
            Cell(
                f"{kind} {name}",
                WorkloadSpec(kind),
                PlatformSpec.read("tcg"),
                {"filesystem": name},
                name == "ext4",
            ),
            time,
        )
        for kind in ("filewrite", "fileread")
        for name, time in (("ext4", 1.0), ("ext3", 2.0))
    ]
    return asking(constructed(cells), *asked)


def kept(words: Sequence[Durability]) -> StoredRun:
    """A filesystem for each word that nobody proved."""
    run = filesystems({"write tcg": {word: 1.0 + number for number, word in enumerate(words)}}, SAFE)
    facts = {
        f"write tcg {word}": [replaced(made_facts.flushes("yes"), durability=str(word))] for word in words
    }
    return with_facts(run, facts)


def without_system_time(*asked: Question) -> StoredRun:
    run = filesystems({"write tcg": {"ext4": 1.0}}, *asked)
    trials = tuple(
        replace(
            trial,
            measurements=tuple(
                replace(each, value=0.0, iterations=(0.0,)) if each.metric.name == "system_s" else each
                for each in trial.measurements
            ),
        )
        for trial in run.trials
    )
    return replace(run, trials=trials)


def in_unit(unit: str, better: Better) -> StoredRun:
    """A metric of a size or of nothing in particular, higher on one platform and lower on another."""
    run = constructed(
        [
            (Cell(name, EXEC, PlatformSpec.read(name), {}, name == "host"), ratio)
            for name, ratio in (("host", 1.0), ("uml", 2.0), ("tcg", 0.5), ("tcg/kvm", 4.0))
        ]
    )
    found = Metric("found", unit, better)
    trials = tuple(
        replace(
            trial,
            measurements=tuple(
                replace(each, metric=found) for each in trial.measurements if each.metric.name == "wall_s"
            ),
        )
        for trial in run.trials
    )
    return replace(run, trials=trials, plan=replace(run.plan, metrics=(found,)))


def no_time(question: Question, blocks: int, **others: Times) -> StoredRun:
    """The run whose xfs on tcg was dropped after so many blocks, as the time got short."""
    run = filesystems(
        {"write tcg": ALL, **{f"write {name}": some for name, some in others.items()}}, question
    )
    dropped = "write tcg xfs"
    left_out = replace(run.plan.context, no_time=(dropped,))
    trials = tuple(trial for trial in run.trials if trial.cell_id != dropped or trial.block < blocks)
    return replace(run, plan=replace(run.plan, context=left_out), trials=trials)


ALL: Times = {"ext2": 1.0, "ext3": 1.4, "ext4": 0.8, "xfs": 0.5}
MANY: Times = {f"fs{number}": 1.0 + number / 5 for number in range(9)}
ASKED: Mapping[str, Callable[[], StoredRun]] = {
    "each platform": lambda: filesystems(
        {"write tcg": ALL, "write uml": {"ext2": 1.0, "ext3": 1.0, "ext4": 2.0}}, PLATFORM
    ),
    "each workload": lambda: filesystems({"write tcg": ALL, "read uml": ALL}, WORKLOAD),
    "no two alike": lambda: filesystems({"write tcg": {"ext2": 1.0}, "read uml": ALL}, PLATFORM, MEMORY),
    "many": lambda: filesystems({"write tcg": {**MANY, **dict.fromkeys("abcde")}}, replace(PLATFORM, per=())),
    "unclear": lambda: filesystems({"write tcg": ALL}, PLATFORM, EXT3, ext3=0.6, xfs=0.5, ext4=0.6),
    "nearly clear": lambda: filesystems(
        {"write tcg": {"ext4": 1.0, "ext3": 1.15}}, PLATFORM, EXT3, blocks=8, ext3=0.12
    ),
    "taken back": lambda: too_hot("write tcg ext3"),
    "three blocks": lambda: published(
        filesystems({"write tcg": ALL}, PLATFORM, EXT3, blocks=3), ("ext4", 5), ("ext3", 8.75)
    ),
    "nothing": lambda: filesystems({"write tcg": dict.fromkeys(ALL)}, PLATFORM, EXT3, PARTS, SAFE),
    "one is missing": lambda: published(
        filesystems({"write tcg": {**ALL, "ext4": None}}, PLATFORM, EXT3), ("ext4", 5), ("ext3", 8.75)
    ),
    "compared": lambda: published(
        filesystems(
            {
                "write tcg": ALL,
                "write uml": {**ALL, "ext3": 8.0},
                "read tcg": {**ALL, "ext3": 0.4},
                "read uml": {**ALL, "ext3": 0.8},
            },
            EXT3,
        ),
        ("ext4", 5),
        ("ext3", 8.75),
    ),
    "another filesystem": lambda: filesystems(
        {"write tcg": ALL, "read tcg": ALL}, replace(EXT3, against={"filesystem": ("jfs",)})
    ),
    "another metric": two_publications,
    "two factors": lambda: sized(EXT3, replace(PLATFORM, per=("filesystem",)), replace(PLATFORM, per=("size",))),
    "more memory": lambda: asking(in_unit("B", Better.HIGHER), replace(MEMORY, metric="found")),
    "a copy": lambda: asking(RUNS["null"](), replace(PLATFORM, per=("size",))),
    "no time for one": lambda: no_time(PLATFORM, 2),
    "no time for one to compare": lambda: no_time(replace(EXT3, compare={"filesystem": ("ext3", "xfs")}), 2),
    "little time for one": lambda: no_time(PLATFORM, 3),
    "little time for one to compare": lambda: no_time(replace(EXT3, compare={"filesystem": ("ext3", "xfs")}), 3),
    "failing": lambda: failing(PLATFORM, EXT3),
    "none of its cells": lambda: filesystems({"write tcg": ALL}, replace(PLATFORM, where={"platform": ("kvm",)})),
    "two and one": lambda: filesystems(
        {"write tcg": {"ext2": 1.0}, "read uml": {"ext2": 1.0, "ext3": 2.0}}, PLATFORM
    ),
    "without labels": lambda: unlabelled(EXT3, replace(PLATFORM, per=("workload",))),
    "one of each": lambda: filesystems({"write tcg": {"ext2": 1.0}, "read uml": {"ext2": 1.0}}, PLATFORM),
    "some forecasts": lambda: filesystems(
        {"write tcg": {"ext4": 1.0, "ext3": 1.15, "ext2": 1.0}}, PLATFORM, blocks=8, ext3=0.12, ext2=0.12
    ),
    "parts": lambda: filesystems({"write tcg": ALL}, PARTS, replace(PARTS, parts=("user_s", "none"))),
    "two parts": lambda: without_system_time(PARTS, replace(PARTS, parts=("user_s", "system_s"))),
    "kept": lambda: kept(list(Durability)),
    "claimed": lambda: kept([Durability.CLAIMED]),
    "reached": lambda: kept([Durability.REACHED]),
    "durable": lambda: durable(SAFE, replace(PLATFORM, durability=("proven",)), replace(PLATFORM, disk=("proven",))),
    "nested": lambda: filesystems(
        {"write tcg": ALL, "write tcg/kvm": ALL}, replace(PLATFORM, per=("workload", "nested"))
    ),
}  # fmt: skip


def whole(pages: Mapping[str, str], name: str) -> None:
    text = "".join(f"== {title}\n{page}\n" for title, page in pages.items())
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    file = GOLDEN / name
    if os.environ.get("GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def drawn(page: Page, width: int) -> str:
    """The page, and below it what has a colour and what only pages of another form show."""
    out = io.StringIO()
    print_page(page, Console(file=out, width=width))
    toned = dict.fromkeys(
        f"[{span.tone}] {span.text.strip()}\n" for span in spans_of(page) if span.tone in COLOURS
    )
    captions = [
        f"[caption] {node.caption}\n"
        for section in page.sections
        for node in section.nodes
        if isinstance(node, Table)
    ]
    return "".join([out.getvalue(), *toned, *captions])


def alone_on_a_page(part: Part, name: str, run: StoredRun, nodes: Sequence[Node]) -> str:
    return drawn(Page(name, run.id, (Section(part, name, tuple(nodes)),)), 132)


def spans_of(part: object) -> Iterator[Span]:
    """Every piece of text in a page; a note that limits the result also as a whole."""
    if isinstance(part, Span):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from spans_of(each)
    elif is_dataclass(part):
        if isinstance(part, Note) and part.kind is not NoteKind.SMALL:
            yield Span(join_plain_text(part.text), Tone(part.kind))
        for each in fields(part):
            yield from spans_of(getattr(part, each.name))


def test_a_dropped_row_is_missed_only_where_it_would_have_been_compared() -> None:
    question = replace(EXT3, compare={"platform": ("uml",)}, against={"platform": ("tcg",)})
    for others, missed in (({"ext3": 2.0}, []), ({"ext3": 2.0, "xfs": 1.0}, ["write tcg xfs"])):
        run = no_time(question, 2, uml=others)
        (answer,) = answer_plan_questions(analyse_run(run.plan, run.trials))
        assert [result.cell.id for result in answer.no_time] == missed


def test_every_word_of_an_answer_to_a_question() -> None:
    pages = {}
    for name, made in ASKED.items():
        run = made()
        nodes = question_answers.make_nodes(
            answer_plan_questions(analyse_run(run.plan, run.trials, run.unusable))
        )
        pages[name] = alone_on_a_page(Part.CONCLUSION, name, run, nodes)
    whole(pages, "questions.txt")


def test_more_blocks_are_no_remedy_for_a_severe_finding() -> None:
    """Blocks that are as hot would be taken back like these."""
    run = ASKED["taken back"]()
    (said,) = question_answers.make_document(analyse_run(run.plan, run.trials, run.unusable))[0]["sentences"]
    assert "not told apart from it: ext3 ×1.1" in said
    assert "Reason: throttling." in said


def test_of_a_cell_that_failed_the_beginning_of_its_reason_is_said() -> None:
    run = failing(PLATFORM)
    told = tuple(
        replace(trial, reason="mount: wrong fs type: dmesg may say more") if trial.reason else trial
        for trial in run.trials
    )
    (question,) = question_answers.make_document(analyse_run(run.plan, told, run.unusable))
    said = " ".join(question["sentences"])
    assert "ext3 (12 of 12 trials failed: mount)" in said
    assert "wrong fs type" not in said
    unusable = replace(host_uml_tcg(), unusable=(LeftOut("kvm", "there is no /dev/kvm: modprobe kvm"),))
    run = asking(unusable, Question("Which platform is fastest?", QuestionKind.BEST))
    (found,) = question_answers.make_document(analyse_run(run.plan, run.trials, run.unusable))
    said = " ".join(found["sentences"])
    assert "kvm (there is no /dev/kvm)" in said
    assert "modprobe" not in said


def test_a_table_that_does_not_have_the_plans_first_metric_is_ranked_by_its_own() -> None:
    run = filesystems({"write tcg": ALL, "read tcg": ALL}, WORKLOAD_OWN)
    told = tuple(
        replace(trial, measurements=trial.measurements[1:]) if trial.cell_id.startswith("read") else trial
        for trial in run.trials
    )
    found = answer_plan_questions(analyse_run(run.plan, told, run.unusable))
    ranked = [each for answer in found for each in answer.findings if isinstance(each, Ranking)]
    assert [each.metric.name for each in ranked] == [run.plan.metrics[0].name, run.plan.metrics[1].name]
    assert all(len(each.cells) == len(ALL) for each in ranked)


def test_nobody_is_told_to_measure_for_a_difference_that_no_run_would_find() -> None:
    unclear = Comparison(
        n=8, ratio=1.0000001, ci=(0.9, 1.1), median_ratio=None, median_ci=None, p=0.9, q=0.9, equivalence_p=None,
        equivalence_q=None, noise_floor=None, verdict=Verdict.INCONCLUSIVE, reason="the interval is too wide",
    )  # fmt: skip
    assert forecast_more_blocks(unclear) is None
    wide = replace(unclear, ratio=1.05)
    more = forecast_more_blocks(wide)
    assert more is not None
    assert 10 < more < 200
    assert forecast_more_blocks(replace(wide, withdrawn=True)) is None


def test_every_value_of_an_answer_in_a_document() -> None:
    found = {}
    for name, made in ASKED.items():
        run = made()
        document = question_answers.make_document(analyse_run(run.plan, run.trials, run.unusable))
        rounded = json.loads(json.dumps(document), parse_float=lambda text: float(f"{float(text):.3g}"))
        found[name] = "\n".join(json.dumps(question) for question in rounded)
    whole(found, "questions.jsonl")


def copied() -> StoredRun:
    """A guest alone, whose copy shows how far equal cells are apart."""
    guest = PlatformSpec.read("tcg")
    copy = Cell("tcg#2", EXEC, guest, null_of="tcg", added=True)
    return constructed([(Cell("tcg", EXEC, guest, {}, True), 1.0), (copy, 1.0)], blocks=2)


def ended(
    run: StoredRun, state: RunState, enough_s: float | None = 60.0, elapsed_s: float | None = None
) -> StoredRun:
    """With a policy of six blocks at least."""
    policy, context = (
        Policy(seed=42, min_blocks=6, enough_s=enough_s),
        replace(run.plan.context, elapsed_s=elapsed_s),
    )
    return replace(run, state=state, plan=replace(run.plan, policy=policy, context=context))


def alone(blocks: int, times: float = 1.0) -> StoredRun:
    return constructed([(Cell("host", EXEC, PlatformSpec.read("host"), {}, True), times)], blocks=blocks)


def on_host(
    names: Sequence[str], shares: Mapping[str, int], iterations: int = 40, blocks: int = 12
) -> StoredRun:
    """Commands that take the same, and ten times as long in so many iterations of every block."""
    host = PlatformSpec.read("host")
    run = constructed(
        [(Cell(name, EXEC, host, {"set": name}, name == "a"), 1.0) for name in names], blocks=blocks
    )
    return repeated(run, shares, iterations)


def guests(shares: Mapping[str, int]) -> StoredRun:
    """As `on_host`, on three platforms."""
    cells = [
        (Cell(name, EXEC, PlatformSpec.read(name), {}, name == "host"), 1.0)
        for name in ("host", "uml", "tcg")
    ]
    return repeated(constructed(cells), shares, 40)


def repeated(run: StoredRun, shares: Mapping[str, int], iterations: int) -> StoredRun:
    trials = []
    for trial in run.trials:
        measured = []
        for each in trial.measurements:
            chance = np.random.default_rng([trial.block, trial.order])
            values = each.value * np.exp(chance.normal(0, 0.01, iterations))
            values[1 : 1 + shares.get(trial.cell_id, 0)] *= 10
            measured.append(replace(each, value=float(np.median(values)), iterations=tuple(values.tolist())))
        trials.append(replace(trial, measurements=tuple(measured)))
    return replace(run, trials=tuple(trials))


def troubled() -> StoredRun:
    """More than one finding, the first of which is long."""
    cells = [("host", 1.0), ("uml", 2.0), ("tcg", 24.0)]
    copy = Cell("host#2", EXEC, PlatformSpec.read("host"), null_of="host")
    stolen = {"foreign_s": 0.0, "machine_steal_s": 0.2, "machine_processors": 1, "elapsed_s": 1.0}
    return constructed(
        [
            *(
                (Cell(name, EXEC, PlatformSpec.read(name), {}, name == "host"), ratio)
                for name, ratio in cells
            ),
            (copy, 1.1),
        ],
        noise={
            (name, block): {**stolen, **({"throttled": 3} if name == "tcg" else {})}
            for name in ("host", "uml", "tcg", "host#2")
            for block in range(12)
        },
    )


def two_workloads() -> StoredRun:
    """In each of them a row that scatters and is not decided, in one of them a processor that was too hot."""
    times: Times = {"ext4": 1.0, "ext3": 1.15}
    run = filesystems({"write tcg": times, "read tcg": times}, blocks=8, ext3=0.3)
    trials = (
        replace(trial, noise={"throttled": 3}) if trial.cell_id == "read tcg ext3" else trial
        for trial in run.trials
    )
    return replace(run, trials=tuple(trials))


def few_runs_and_a_failed_trial() -> StoredRun:
    """Whose trials have one metric each."""
    run = on_host("abc", {}, iterations=5)
    trials = (
        replace(trial, status=TrialStatus.FAILED, measurements=(), reason="exit status 1")
        if (trial.cell_id, trial.block) == ("b", 3)
        else replace(trial, measurements=trial.measurements[:1])
        for trial in run.trials
    )
    return replace(run, trials=tuple(trials))


FIRST: Mapping[str, Callable[[], StoredRun]] = {
    **RUNS,
    "asked": ASKED["each platform"],
    "troubled": troubled,
    "less memory": lambda: in_unit("B", Better.LOWER),
    "more memory": lambda: in_unit("B", Better.HIGHER),
    "a better score": lambda: in_unit("", Better.HIGHER),
    "a worse error": lambda: in_unit("", Better.LOWER),
    "one command": lambda: alone(12),
    "one quick command": lambda: alone(12, 0.002),
    "one command and its copy": copied,
    "one command once": lambda: alone(1),
    "stopped": lambda: ended(alone(3), RunState.STOPPED),
    "stopped with enough": lambda: ended(alone(6), RunState.STOPPED, elapsed_s=100.0),
    "stopped without a limit": lambda: ended(alone(3), RunState.STOPPED, None),
    "complete with fewer": lambda: ended(alone(3), RunState.COMPLETE),
    "stopped before anything": lambda: ended(RUNS["nothing"](), RunState.STOPPED),
    "slow runs": lambda: guests({"uml": 6}),
    "slow runs of the baseline": lambda: guests({"host": 6, "tcg": 6}),
    "one slow run": lambda: on_host("abcde", {"b": 1}, blocks=6),
    "slow runs of all": lambda: on_host("abcde", dict.fromkeys("abcde", 3)),
    "few runs": lambda: on_host("abc", {}, iterations=5),
    "equal": lambda: on_host("abc", {}, iterations=400),
    "few runs and a failed trial": few_runs_and_a_failed_trial,
    "imported": lambda: replace(alone(12), origin=RunOrigin("lab.gmk", 1.8e9, "ab" * 32)),
    "two workloads": two_workloads,
    "slow runs of more than three": lambda: on_host("abcdef", dict.fromkeys("bcde", 6)),
    "disks that were proven": lambda: with_facts(
        guests({}),
        {"uml": [proven(Durability.PROVEN, of_row=False)], "tcg": [proven(Durability.LOST, 3, of_row=False)]},
    ),
}  # fmt: skip


def figures_of(
    run: StoredRun,
    *values: float,
    unit: str = "s",
    baseline: float | None = 8.0,
    of: Mapping[str, str] | None = None,
    **more: Any,
) -> StoredRun:
    """Two publications: of every filesystem that was measured, and of one that was not."""
    names = [cell.factors["filesystem"] for cell in run.plan.cells]
    found = tuple(
        PublishedFigure({"filesystem": name}, value, baseline)
        for name, value in zip(names, values, strict=False)
    )
    other = (PublishedFigure({"filesystem": "ufs"}, 0.25), PublishedFigure({"filesystem": "zfs"}, 12345.678))
    given: dict[str, Any] = {"percent_of": "time", "metric": "wall_s", "baseline": of or {}, **more}
    first = Published("Someone, 2012", unit=unit, figures=found, **given)
    plan = replace(run.plan, published=(first, replace(first, figures=other, name="in an appendix")))
    return replace(run, plan=plan)


def tcg(times: Times) -> StoredRun:
    return filesystems({"write tcg": times})


APART: Times = {"ext2": 1.0, "ext3": 500.0, "ext4": 0.005, "xfs": 0.0005}
PUBLISHED: Mapping[str, Callable[[], StoredRun]] = {
    "times": lambda: figures_of(tcg(ALL), 8.0, 8.5, 4.0, 16.25, conditions="on a laptop"),
    "throughput": lambda: figures_of(tcg(ALL), 8.0, 8.5, percent_of="throughput", name="upload"),
    "milliseconds": lambda: figures_of(tcg(ALL), 8.0, 0.0625, 1000.0, unit="ms"),
    "far apart": lambda: figures_of(tcg(APART), 8.0, 4000.0, 0.08, 0.006),
    "without a baseline": lambda: figures_of(tcg(ALL), 8.0, 8.5, baseline=None),
    "of another baseline": lambda: figures_of(tcg(ALL), 8.0, of={"filesystem": "ufs"}),
    "unmeasured": lambda: figures_of(tcg({"ext2": None, "ext3": 1.0}), 8.0, 8.5),
    "of another metric": lambda: figures_of(tcg(ALL), 8.0, 8.5, metric="user_s"),
    "of a metric that some lack": lambda: without(
        "user_s", "ext3", figures_of(tcg(ALL), 8.0, 8.5, metric="user_s")
    ),
    "at a smaller scale": lambda: smaller(figures_of(tcg(ALL), 8.0, 8.5)),
    "a copy": RUNS["disks"],
    "nothing": lambda: tcg(ALL),
}  # fmt: skip


def without(metric: str, filesystem: str, run: StoredRun) -> StoredRun:
    """The run whose trials on one filesystem lack one metric."""
    trials = (
        replace(
            trial,
            measurements=tuple(each for each in trial.measurements if each.metric.name != metric),
        )
        if trial.cell_id.endswith(filesystem)
        else trial
        for trial in run.trials
    )
    return replace(run, trials=tuple(trials))


def smaller(run: StoredRun) -> StoredRun:
    return replace(run, plan=replace(run.plan, context=replace(run.plan.context, scale=0.05)))


def test_every_word_beside_published_figures() -> None:
    pages = {}
    for name, made in PUBLISHED.items():
        run = made()
        found = analyse_run(run.plan, run.trials, run.unusable)
        nodes: list[Node] = [
            node for workload in found.workloads for node in then_and_now.make_tables(workload, run)
        ]
        nodes += then_and_now.list_unmeasured(found)
        pages[name] = alone_on_a_page(Part.PUBLISHED, name, run, nodes)
    whole(pages, "published.txt")


def test_every_word_of_a_conclusion() -> None:
    pages = {}
    for name, made in FIRST.items():
        run = made()
        nodes = conclusion.make_conclusion(analyse_run(run.plan, run.trials, run.unusable))
        pages[name] = alone_on_a_page(Part.CONCLUSION, name, run, nodes)
    whole(pages, "conclusions.txt")


@functools.cache
def first(name: str) -> tuple[StoredRun, Analysis]:
    run = FIRST[name]()
    return run, analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)


@pytest.mark.parametrize("width", [60, 80, 110, 140])
def test_every_word_of_the_first_screen(width: int) -> None:
    pages = {}
    for name in FIRST:
        run, found = first(name)
        latest = name != "plain"
        pages[name] = drawn(make_short_report(run, found, width=width, latest=latest), width)
    whole(pages, f"answer-{width}.txt")


@pytest.mark.parametrize(("title", "called"), [("What is fastest?", "What is fastest?"), ("", "test")])
def test_the_first_screen_is_called_what_its_plan_is(title: str, called: str) -> None:
    run = RUNS["plain"]()
    run = replace(run, plan=replace(run.plan, name="test", title=title))
    assert make_short_report(run, analyse_run(run.plan, run.trials), width=80, latest=True).title == called


@pytest.mark.parametrize(
    ("rows", "of", "said"),
    [(1, 5, "a"), (3, 5, "a, b, c"), (4, 5, "4 of 5 rows"), (3, 3, "a, b, c"), (4, 4, "all 4 rows")],
)
def test_more_than_three_rows_that_are_inconclusive_are_counted(rows: int, of: int, said: str) -> None:
    unclear = Comparison(
        n=8, ratio=1.1, ci=(0.9, 1.3), median_ratio=None, median_ci=None, p=0.4, q=0.4, equivalence_p=None,
        equivalence_q=None, noise_floor=None, verdict=Verdict.INCONCLUSIVE, reason="the interval is too wide",
    )  # fmt: skip
    slower = replace(unclear, verdict=Verdict.SLOWER, reason="")
    run = tcg(ALL)
    result = analyse_run(run.plan, run.trials, run.unusable).workloads[0].shown_cells[0]
    names = {name: name for name in "abcde"[:of]}
    compared = [
        (replace(result, cell=replace(result.cell, id=name)), unclear if number < rows else slower)
        for number, name in enumerate(names)
    ]
    (note,) = conclusion.make_undecided_notes(compared, names)
    assert join_plain_text(note.text) == f"Inconclusive: {said} – the interval is too wide"
