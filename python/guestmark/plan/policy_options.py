"""The options that decide how often to measure, each declared once.

A field of `PolicyOptions` is an option of the command line, a key of `[repetition]` in a plan, an argument of the
library's functions, and a row of the reference. `core.model.Policy` holds the values that result, with their defaults.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from guestmark.core.errors import UsageError
from guestmark.core.option import Option
from guestmark.core.rare import Rare
from guestmark.core.units import parse_fraction, parse_positive_duration
from guestmark.plan.matrix import NullCells

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """How often to measure; None leaves it to the plan or to the default of `core.model.Policy`."""

    null: Annotated[
        NullCells | None, Option("--null", "Cells to measure twice, to find the noise floor.", key="null")
    ] = None
    blocks: Annotated[
        int | None,
        Option("--blocks -r --runs", "Run exactly this many blocks.", metavar="N", minimum=1, key="blocks"),
    ] = None
    min_blocks: Annotated[
        int | None,
        Option(
            "--min-runs -m",
            "Run at least this many blocks.",
            metavar="N",
            minimum=1,
            key="min_blocks",
            only_for=("exec",),
        ),
    ] = None
    max_blocks: Annotated[
        int | None,
        Option(
            "--max-runs -M",
            "Run at most this many blocks.",
            metavar="N",
            minimum=1,
            key="max_blocks",
            only_for=("exec",),
        ),
    ] = None
    precision: Annotated[
        float | None,
        Option(
            "--precision",
            "Stop when every ratio is known to this precision (default 2%, or 5% of the effect), after at least 8 "
            "blocks.",
            metavar="PERCENT",
            parse=parse_fraction,
            key="precision",
        ),
    ] = None
    find: Annotated[
        Rare | None,
        Option(
            "--find",
            "Keep measuring until slow runs of this kind would be detected with 90 % probability. 'x2 in 5%' means "
            "that 1 run in 20 takes twice as long; 'x2 in 5% of starts' means that 1 machine in 20 is slow as a "
            "whole.",
            metavar="SLOW",
            parse=Rare.parse,
        ),
    ] = None
    over_s: Annotated[
        float | None,
        Option(
            "--over",
            "Spread the blocks over this time, e.g. 2h, so that the intervals cover changes over the hours.",
            metavar="DURATION",
            parse=parse_positive_duration,
        ),
    ] = None
    time_limit_s: Annotated[
        float | None,
        Option(
            "--time-limit",
            "Stop after this time at the latest (default 10m).",
            metavar="DURATION",
            parse=parse_positive_duration,
            key="time_limit",
        ),
    ] = None
    trial_limit_s: Annotated[
        float | None,
        Option(
            "--trial-limit",
            "Kill a run of the workload after this time; the trial fails (default 10m).",
            metavar="DURATION",
            parse=parse_positive_duration,
            key="trial_limit",
        ),
    ] = None
    margin: Annotated[
        float | None,
        Option(
            "--margin",
            "Treat smaller differences as no difference (default 3%).",
            metavar="PERCENT",
            parse=parse_fraction,
            key="margin",
        ),
    ] = None
    warmup: Annotated[
        int | None,
        Option(
            "--warmup -w",
            "Unmeasured runs on each fresh machine before the measured ones (default 1).",
            metavar="N",
            minimum=0,
            key="warmup",
        ),
    ] = None
    iterations: Annotated[
        int | None,
        Option(
            "--iterations",
            "Measured runs on each fresh machine (default: 1 to 20, depending on how long one takes).",
            metavar="N",
            minimum=1,
            key="iterations",
        ),
    ] = None
    share_machine: Annotated[
        bool | None,
        Option(
            "--share-machine/--no-share-machine",
            "Run those cells of a block that need the same machine on one fresh machine (default: as the plan says).",
            key="share_machine",
            only_for=("run",),
        ),
    ] = None
    seed: Annotated[int | None, Option("--seed", "Seed of the random order.", metavar="N", minimum=0)] = None


BUDGET = Option(
    "--for",
    "Wall time of the whole command, e.g. 5m. Sizes, cells and questions are chosen to fit into it.",
    metavar="DURATION",
    parse=parse_positive_duration,
    key="for",
    only_for=("run", "tune", "powercut"),
)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Options that contradict `option`, and what to do about it."""

    option: str
    others: tuple[str, ...]
    hint: str
    # Whether the keys of a plan contradict each other too.
    in_plans: bool = False


# A plan may hold both a number of blocks and a time limit: the limit then only guards against machines that hang.
CONFLICTS = (
    Conflict("blocks", ("precision",), "give only one of them", in_plans=True),
    Conflict("blocks", ("time_limit_s",), "give only one of them"),
    Conflict("over_s", ("precision", "time_limit_s"), "give a number of blocks: --blocks 12 --over 2h"),
    Conflict("min_blocks", ("blocks",), "use --blocks alone"),
    Conflict("max_blocks", ("blocks",), "use --blocks alone"),
    Conflict("find", ("blocks", "precision", "over_s"), "give only one goal; --time-limit may end it sooner"),
    Conflict("budget_s", ("blocks",), "use --for alone: it chooses the blocks", in_plans=True),
    Conflict("budget_s", ("time_limit_s", "over_s"), "use --for alone: it chooses the blocks"),
)


@cache
def list_policy_options() -> dict[str, Option]:
    """Return the declarations by the name of their field, in the order of the help."""
    hints = get_type_hints(PolicyOptions, include_extras=True)
    options = {field.name: hints[field.name].__metadata__[0] for field in fields(PolicyOptions)}
    # The budget is not part of the policy, which is chosen to fit into it.
    return {**options, "budget_s": BUDGET}


def find_policy_option(name: str, help: str = "") -> Option:  # noqa: A002 - as the field that it replaces
    """Return the declaration of one option, with another `help` if a command uses it in its own way."""
    option = list_policy_options()[name]
    if help:
        option = replace(option, help=help)
    return option


def select_given_values(values: Mapping[str, T | None]) -> dict[str, T]:
    """Return the values that were given; None marks an option or a key that was left out."""
    return {name: value for name, value in values.items() if value is not None}


def collect_given_values(options: PolicyOptions) -> dict[str, Any]:
    """Collect the values that were given, by the name of their field."""
    values = {}
    for field in fields(PolicyOptions):
        value = getattr(options, field.name)
        if value is not None:
            values[field.name] = value
    return values


def choose_budget(asked_s: float | None, planned_s: float | None, given: Mapping[str, Any]) -> float | None:
    """Return the wall time of a run in seconds: `asked_s`, else the plan's own; None for a run without one.

    `given` holds the values of the command line by the name of their field; those that choose the blocks replace the
    plan's budget. Raises `UsageError` if they contradict the one that was asked for.
    """
    if asked_s is not None:
        check_conflicts({"budget_s": asked_s, **given})
        return asked_s
    for conflict in CONFLICTS:
        if conflict.option == "budget_s" and not given.keys().isdisjoint(conflict.others):
            return None
    return planned_s


def find_plan_conflicts(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each contradiction between keys of a plan: the key, and what is wrong."""
    options = list_policy_options()
    for conflict in CONFLICTS:
        for other in conflict.others:
            if conflict.in_plans and {conflict.option, other} <= given.keys():
                key = options[conflict.option].key
                yield key, f"{key} cannot be combined with {options[other].key}"


def check_conflicts(given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options of the command line that contradict each other.

    `given` holds the values by the name of their field, without those that were not given.
    """
    options = list_policy_options()
    for conflict in CONFLICTS:
        for other in conflict.others:
            if conflict.option in given and other in given:
                first, second = options[conflict.option].name, options[other].name
                raise UsageError(f"{first} cannot be combined with {second}", hint=conflict.hint)
    least, most = given.get("min_blocks"), given.get("max_blocks")
    if least is not None and most is not None and least > most:
        first, second = options["min_blocks"].name, options["max_blocks"].name
        raise UsageError(f"{first} {least} is more than {second} {most}", hint="lower one or raise the other")
