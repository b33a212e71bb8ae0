"""Reads `[[question]]` tables of a plan: what its run answers in the conclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guestmark.core import registry
from guestmark.core.cell_levels import NESTED, PLATFORM, WORKLOAD, YES_NO
from guestmark.core.findings import Durability
from guestmark.core.metric import Metric
from guestmark.core.model import Question, QuestionKind

# This imports pydantic, which only plan files need.
from guestmark.plan import schema


def make_question(
    model: schema.Question, tables: Mapping[str, Mapping[str, tuple[str, ...]]], metrics: Sequence[Metric]
) -> Question:
    """Return the question of a plan's table; `tables` are its levels. Raises `ValueError` with one line."""
    _check_names(model, tables, metrics)
    _check_keys(model)
    return Question(
        " ".join(model.ask.split()), QuestionKind(model.wants), model.metric, tables["where"], tuple(model.per),
        tuple(model.durability or ()), tuple(model.disk or ()), tables["compare"], tables["against"],
        tuple(model.parts), " ".join(model.conclusion.split()),
    )  # fmt: skip


def _check_names(
    model: schema.Question, tables: Mapping[str, Mapping[str, tuple[str, ...]]], metrics: Sequence[Metric]
) -> None:
    """Raise `ValueError` for a metric, a name, a level of `nested` or a durability that does not exist."""
    known = [metric.name for metric in metrics]
    for name in (model.metric, *model.parts):
        if name and known and name not in known:
            raise ValueError(f"{name!r} is not a metric of the plan (known: {', '.join(known)})")
    for name in model.per:
        if name not in {WORKLOAD, PLATFORM, NESTED, *registry.factors()}:
            raise ValueError(f"per: {name!r} is neither workload, platform, nested nor a factor")
    for table in tables.values():
        if set(table.get(NESTED, ())) - set(YES_NO):
            raise ValueError(f"nested must be one of {', '.join(YES_NO)}")
    for word in (*(model.durability or ()), *(model.disk or ())):
        if word not in tuple(Durability):
            raise ValueError(f"durability {word!r} is not one of {', '.join(Durability)}")


def _check_keys(model: schema.Question) -> None:
    """Raise `ValueError` for keys that belong to another kind of question."""
    wants = QuestionKind(model.wants)
    if (wants is QuestionKind.COMPARE) != bool(model.compare and model.against):
        raise ValueError("compare and against require each other and wants = 'compare'")
    if model.conclusion and wants is not QuestionKind.COMPARE:
        raise ValueError("a published conclusion requires wants = 'compare'")
    if (wants is QuestionKind.PARTS) != bool(model.parts):
        raise ValueError("parts and wants = 'parts' require each other")
    if (model.durability or model.disk) and (wants is not QuestionKind.BEST):
        raise ValueError("durability and disk require wants = 'best'")
