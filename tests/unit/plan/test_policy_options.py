"""The options of the policy: one declaration each, which every place reads."""

from dataclasses import fields

import pytest

from guestmark.core.errors import UsageError
from guestmark.core.model import Policy
from guestmark.plan.policy_options import CONFLICTS, PolicyOptions, check_conflicts, list_policy_options
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
