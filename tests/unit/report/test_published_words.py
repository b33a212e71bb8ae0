"""Every word beside a published figure, from runs whose ratios are known: sentences about filesystems and backends."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from guestmark.core.metric import Better, Metric
from guestmark.core.model import Cell, Published, PublishedFigure, Question, QuestionKind, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.nodes import Bullets
from guestmark.page.text import join_plain_text
from guestmark.report.sections.backend_conclusions import list_backend_conclusions
from guestmark.report.sections.conclusion import make_conclusion
from guestmark.report.sections.filesystem_conclusions import list_filesystem_conclusions
from guestmark.stats.analysis import Analysis, analyse_run
from tests.framework.runs import constructed

WRITE = WorkloadSpec("filewrite", {}, "sequential write", key="write")
THROUGHPUT = Metric("throughput", "B/s", Better.HIGHER)
CALLS = WorkloadSpec("syscalls", {}, "system calls", key="calls")
WHOLE = 1e8  # bytes moved by each row


def found_of_filesystems(
    times: Mapping[str, float],
    then: Mapping[str, float],
    *,
    blocks: int = 12,
    spread: float = 0.0,
    metric: str = "throughput",
    asked: tuple[Question, ...] = (),
) -> Analysis:
    """A run of filesystems that take those times, beside published rates.

    By `spread` every other block of the second one is longer, the rest shorter, relative.
    """
    cells = [
        (Cell(name, WRITE, PlatformSpec.read("tcg"), {"filesystem": name}, number == 0), time)
        for number, (name, time) in enumerate(times.items())
    ]
    second = list(times)[1]
    run = constructed(cells, blocks=blocks)
    at = {trial.block: trial.measurements[0].value for trial in run.trials if trial.cell_id == second}
    spreading = {(second, block): took * (1 + spread * (-1) ** block) for block, took in at.items()}
    run = constructed(cells, blocks=blocks, values=spreading)
    trials = tuple(
        replace(
            trial,
            measurements=tuple(
                replace(each, metric=THROUGHPUT, value=WHOLE / each.value, iterations=(WHOLE / each.value,))
                if each.metric.name == "wall_s"
                else each
                for each in trial.measurements
            ),
        )
        for trial in run.trials
    )
    figures = tuple(PublishedFigure({"filesystem": name}, value) for name, value in then.items())
    published = (Published("then", metric, "MB/s", "throughput", figures),)
    metrics = (THROUGHPUT, *run.plan.metrics[1:])
    plan = replace(run.plan, metrics=metrics, published=published, questions=asked)
    return analyse_run(plan, trials, run.unusable)


def said_of_filesystems(times: Mapping[str, float], then: Mapping[str, float], **more: Any) -> list[str]:
    """The sentences about filesystems in such a run."""
    (bullets,) = list_filesystem_conclusions(found_of_filesystems(times, then, **more))
    return [join_plain_text(item) for item in bullets.items]


def test_disks_are_told_from_filesystems_where_the_plan_asks_nothing_itself() -> None:
    def leads(*asked: Question) -> list[str]:
        found = found_of_filesystems({"ext4": 1.0, "ext3": 2.0}, {}, asked=asked)
        return [join_plain_text(node.lead) for node in make_conclusion(found) if isinstance(node, Bullets)]

    head = "Is it the disk or the filesystem?"
    assert head in leads()
    assert head not in leads(Question("Which is fastest?", QuestionKind.BEST))


@pytest.mark.parametrize(
    ("slow", "published", "said"),
    [
        (2.0, 2.0, "(published ×2): the published conclusion holds."),
        (2.0, 1.5, "(published ×1.5): the published conclusion holds, though by another factor."),
        (2.0, 3.0, "(published ×3): the published conclusion holds, though by another factor."),
        (0.5, 2.0, "(published ×2): it does not hold here."),
        (1.0, 2.0, "(published ×2): it does not hold here."),
    ],
)
def test_whether_a_published_conclusion_about_filesystems_holds(
    slow: float, published: float, said: str
) -> None:
    times, then = {"ext4": 1.0, "ext3": slow}, {"ext4": 10 * published, "ext3": 10.0}
    _, sentence = said_of_filesystems(times, then)
    assert sentence.startswith("sequential write on tcg: ext4 is ×")
    assert " as fast as ext3 (published " in sentence
    assert sentence.endswith(said)
    assert said_of_filesystems(dict(reversed(times.items())), dict(reversed(then.items())))[1].endswith(said)


@pytest.mark.parametrize(
    ("published", "said"),
    [
        (2.0, "a difference that large is excluded; whether there is a smaller one is open."),
        (1.05, "whether that holds is open."),
    ],
)
def test_a_run_that_cannot_tell_says_what_it_excludes(published: float, said: str) -> None:
    times, then = {"ext4": 1.0, "ext3": 1.05}, {"ext4": 10 * published, "ext3": 10.0}
    about, sentence = said_of_filesystems(times, then, spread=0.2)
    assert about.endswith(". Whether the filesystem makes a difference is open.")
    assert sentence.endswith(f"): {said}")


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_fewer_blocks_than_a_verdict_takes_exclude_nothing(blocks: int) -> None:
    times, then = {"ext4": 1.0, "ext3": 1.0}, {"ext4": 30.0, "ext3": 10.0}
    _, sentence = said_of_filesystems(times, then, blocks=blocks, spread=0.001)
    assert sentence.endswith("(published ×3): whether that holds is open.")


def test_a_published_difference_within_the_margin_is_not_refused() -> None:
    """Alike within 3 % and published as 2 % apart: both can be true."""
    _, sentence = said_of_filesystems({"ext4": 1.0, "ext3": 1.0}, {"ext4": 10.2, "ext3": 10.0}, spread=0.02)
    assert sentence.endswith("(published ×1): whether that holds is open.")


def test_filesystems_that_are_alike_are_said_to_make_no_difference() -> None:
    about, _ = said_of_filesystems({"ext4": 1.0, "ext3": 1.0}, {"ext4": 20.0, "ext3": 10.0})
    assert re.search(r"The typical run does not depend on the filesystem, within 3\.0\s%\.$", about)


def test_only_published_differences_in_the_same_metric_have_a_sentence() -> None:
    times = {"ext4": 1.0, "ext3": 2.0}
    assert len(said_of_filesystems(times, {"ext4": 20.0, "ext3": 20.0})) == 1  # published as equal
    assert len(said_of_filesystems(times, {"ext4": 20.0})) == 1
    assert len(said_of_filesystems(times, {"ext4": 20.0, "ext3": 10.0}, metric="wall_s")) == 1
    (*_, sentence) = said_of_filesystems(times, {"ext4": 10.0, "ext3": 20.0})
    assert sentence.startswith("sequential write on tcg: ext3 is ×0.5")  # the faster one then stands first
    assert sentence.endswith("as fast as ext4 (published ×2): it does not hold here.")


def test_each_backend_has_the_published_ratio_of_its_time() -> None:
    """UML's over the other's, of the first publication that has a figure for each."""
    cells = [
        (Cell(name, CALLS, PlatformSpec.read(name), {}, name == "uml"), ratio)
        for name, ratio in {"uml": 3.0, "tcg": 1.0, "kvm": 2.0}.items()
    ]
    run = constructed(cells)
    both = PublishedFigure({"workload": "calls"}, 9.0)  # about either: no ratio
    figures = (PublishedFigure({"platform": "uml"}, 8.0), PublishedFigure({"platform": "tcg"}, 5.0))
    publications = tuple(Published("then", "wall_s", "s", "time", each) for each in ((both,), figures))
    (found,) = list_backend_conclusions(
        analyse_run(replace(run.plan, published=publications), run.trials, run.unusable)
    )
    (sentence,) = map(join_plain_text, found.items)
    assert sentence.startswith("system calls, bare: uml takes ×")
    assert re.search(
        r"uml takes ×(3\.0|2\.9)\S* \[\S+, \S+\] the time of tcg \(published ×1\.6\); ", sentence
    )
    assert sentence.endswith(" the time of kvm. Fastest bare: tcg.")
