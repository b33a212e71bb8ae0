"""`[[question]]`: what a plan's run answers in its last sentences, and which cells a question is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from guestmark.core import registry
from guestmark.core.findings import Durability
from guestmark.core.metric import Metric
from guestmark.core.model import Asked, Cell, Question
from guestmark.plan import pattern
from guestmark.plan.pattern import PLATFORM, WORKLOAD

if TYPE_CHECKING:
    from guestmark.plan import schema  # pydantic, which a command line does without

NESTED = "nested"
_YES_NO = ("yes", "no")
NESTED_WORDS = {"yes": "nested", "no": "bare"}


def question_of(
    model: schema.Question, tables: Mapping[str, Mapping[str, tuple[str, ...]]], metrics: Sequence[Metric]
) -> Question:
    """The question that a plan's table asks; `tables` are those of its levels. Raises `ValueError` in one line."""
    known = [metric.name for metric in metrics]
    for name in (model.metric, *model.parts):
        if name and known and name not in known:
            raise ValueError(f"{name!r} is not a metric of the plan (known: {', '.join(known)})")
    for name in model.per:
        if name not in {WORKLOAD, PLATFORM, NESTED, *registry.factors()}:
            raise ValueError(f"per: {name!r} is neither workload, platform, nested nor a factor")
    for table in tables.values():
        if set(table.get(NESTED, ())) - set(_YES_NO):
            raise ValueError(f"nested is one of {', '.join(_YES_NO)}")
    wants = Asked(model.wants)
    if (wants is Asked.COMPARE) != bool(model.compare and model.against):
        raise ValueError("compare and against belong together, and to wants = 'compare'")
    if model.conclusion and wants is not Asked.COMPARE:
        raise ValueError("a published conclusion belongs to wants = 'compare' alone")
    if (wants is Asked.PARTS) != bool(model.parts):
        raise ValueError("parts belong to wants = 'parts', which needs some")
    if (model.durability or model.disk) and (wants is not Asked.BEST):
        raise ValueError("durability and disk limit wants = 'best' alone")
    for word in (*(model.durability or ()), *(model.disk or ())):
        if word not in tuple(Durability):
            raise ValueError(f"durability {word!r} is none of {', '.join(Durability)}")
    return Question(
        " ".join(model.ask.split()), wants, model.metric, tables["where"], tuple(model.per),
        tuple(model.durability or ()), tuple(model.disk or ()), tables["compare"], tables["against"],
        tuple(model.parts), " ".join(model.conclusion.split()),
    )  # fmt: skip


def level_of(cell: Cell, name: str) -> str | None:
    """As `pattern.level_of`, and whether the cell's machine is inside another guest."""
    if name == NESTED:
        return _YES_NO[not cell.platform.is_nested]
    return pattern.level_of(cell, name)


def shown_level(cell: Cell, name: str) -> str | None:
    """As `level_of`, in the words of a sentence."""
    level = level_of(cell, name)
    return NESTED_WORDS[level] if name == NESTED and level is not None else level


def groups_of(question: Question, cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells that the question is about, those with the same levels of its `per` together, in order."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if fits(cell, question.where):
            groups.setdefault(tuple(level_of(cell, name) or "" for name in question.per), []).append(cell)
    return list(groups.values())


def pairs_of(question: Question, cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """The pairs that the question compares: alike in each name that both have, but for those it asks about."""
    about = [cell for cell in cells if fits(cell, question.where)]
    named = question.compare.keys() | question.against.keys()
    return [
        (first, second)
        for first in about
        for second in about
        if first is not second
        and fits(first, question.compare)
        and fits(second, question.against)
        and all(
            level_of(first, name) == level_of(second, name)
            for name in {WORKLOAD, PLATFORM, *(first.factors.keys() & second.factors.keys())} - named
        )
    ]


def fits(cell: Cell, wanted: Mapping[str, Sequence[str]]) -> bool:
    """Whether the cell has one of the levels of each name; a table without names fits every cell."""
    return all(level_of(cell, name) in levels for name, levels in wanted.items())
