"""The options of the policy: one declaration each, which every place reads."""

from dataclasses import fields

import pytest

from guestmark.core.errors import UsageError
from guestmark.core.model import Policy
from guestmark.plan.load import load_outline
from guestmark.plan.policy_options import (
    CONFLICTS,
    PolicyOptions,
    check_conflicts,
    choose_budget,
    list_policy_options,
)
from guestmark.plan.schema import Repetition


def test_every_field_is_a_value_of_the_policy_or_of_the_matrix() -> None:
    values = {field.name for field in fields(Policy)} | {"null"}
    assert {field.name for field in fields(PolicyOptions)} <= values


def test_a_plan_has_the_keys_that_are_declared() -> None:
    keys = [option.key for option in list_policy_options().values() if option.key]
    assert list(Repetition.model_fields) == keys


def test_every_contradiction_is_refused_with_both_names() -> None:
    options = list_policy_options()
    for conflict in CONFLICTS:
        for other in conflict.others:
            first, second = options[conflict.option].name, options[other].name
            with pytest.raises(UsageError, match=f"{first} cannot be combined with {second}"):
                check_conflicts({conflict.option: 1, other: 1})


PLAN = """
schema = "guestmark-plan/2"
name = "short"
title = "How long?"
platforms = ["host"]

[workloads.w]
kind = "exec"
params.command = ["true"]

[repetition]
for = "90m"
"""


def test_a_plan_may_have_a_budget() -> None:
    assert load_outline(PLAN, "a plan").budget_s == 5400
    assert load_outline(PLAN, "a plan", overrides=["repetition.for=20m"]).budget_s == 1200


@pytest.mark.parametrize(
    ("more", "mistake"),
    [
        ('for = "soon"', "soon"),
        ('for = "90m"\nblocks = 3', "for cannot be combined with blocks"),
    ],
)
def test_a_wrong_budget_of_a_plan_is_refused(more: str, mistake: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_outline(PLAN.replace('for = "90m"', more), "a plan")
    assert mistake in str(caught.value.hint)


def test_the_command_line_replaces_the_budget_of_a_plan() -> None:
    assert choose_budget(None, 5400, {"precision": 0.01}) == 5400
    assert choose_budget(60, 5400, {}) == 60
    for name in ("blocks", "time_limit_s", "over_s"):
        assert choose_budget(None, 5400, {name: 1}) is None
        with pytest.raises(UsageError, match="--for cannot be combined"):
            choose_budget(60, 5400, {name: 1})
