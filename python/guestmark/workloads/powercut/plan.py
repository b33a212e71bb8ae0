"""The plan of `guestmark powercut`: one trial for each configuration."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from guestmark.core import registry
from guestmark.core.context import Caller
from guestmark.core.errors import UsageError
from guestmark.core.model import Plan, Policy
from guestmark.core.platform_spec import parse_platforms
from guestmark.plan.matrix import Entry, NullCells, Shape
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline
from guestmark.workloads import powercut

_TITLE = "what a power cut leaves"


def build_plan(given: Overrides, raw: Mapping[str, Any], caller: Caller) -> Plan:
    """Builds the plan for `given.on`. Raises `UsageError` for contradictory or unsupported options."""
    kind = registry.workload_kind("powercut")
    try:
        params = kind.check_params(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"--{first['loc'][0]} {first['input']!r}: {first['msg'].lower()}",
            hint="see guestmark powercut --help",
        ) from error
    except ValueError as error:
        raise UsageError(str(error), hint="guestmark powercut --check COMMAND -- COMMAND...") from error
    entry = Entry(kind.make_spec(params), kind=kind)
    shape = Shape((entry,), parse_platforms(given.on or ()), title=_TITLE, null=NullCells.NONE)
    policy = Policy(blocks=1, warmup=0, iterations=1)
    outline = Outline("powercut", shape, policy, powercut.ALL)
    plan = assemble_plan(override_outline(outline, given), caller)
    return replace(plan, context=replace(plan.context, typed=True))
