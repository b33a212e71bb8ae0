"""A plan's context as ledgers keep it: what was written is read again, whichever version wrote it."""

import json
from typing import Any

import pytest

from guestmark.core.context import Caller, Context
from guestmark.core.model import Plan, Policy
from guestmark.ledger import codec

CALLER = {"cwd": "/", "env": {"PATH": "/bin"}, "uid": 0, "gid": 0, "groups": [0]}
LIMIT = {"metric": "guest_cpu_s", "value": 5.0, "better": "lower"}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({**CALLER, "notes": []}, id="a command"),
        pytest.param({**CALLER, "notes": ["a"], "scale": 0.5, "cost": {"uml": 3.0}, "start": {"uml": 1.0}}, id="size"),
        pytest.param({**CALLER, "notes": [], "around": {"run": {"setup": "true"}}, "gates": ["wall_s<5"]}, id="hooks"),
        pytest.param({**CALLER, "notes": [], "budget_s": 60.0, "no_time": ["uml"], "elapsed_s": 59.5}, id="a budget"),
        pytest.param({**CALLER, "notes": [], "prove": True, "proofs_took_s": [3.5]}, id="proofs"),
        pytest.param({**CALLER, "notes": [], "barred": {"uml": "slow"}, "race_limit_s": 0.0}, id="a race's end"),
        pytest.param({**CALLER, "notes": [], "extended": [{"after_blocks": 6, "blocks": 9}]}, id="extended"),
    ],
)  # fmt: skip
def test_what_a_ledger_holds_is_read_and_written_the_same(given: dict[str, Any]) -> None:
    plain = codec.to_plain(Plan("x", (), Policy(), ()))
    read = codec.convert_plain({**plain, "context": given}, Plan, "a plan")
    assert isinstance(read.context, Context)
    assert read.context.caller == Caller("/", {"PATH": "/bin"}, 0, 0, (0,))
    assert json.loads(codec.dump_json(read))["context"] == given


def test_a_race_that_says_no_more_than_its_objective_is_read() -> None:
    tune = {"objective": "wall_s", "better": "higher", "limits": [LIMIT]}
    plain = codec.to_plain(Plan("x", (), Policy(), ()))
    settings = codec.convert_plain(
        {**plain, "context": {**CALLER, "tune": tune}}, Plan, "a plan"
    ).context.tune
    assert settings is not None
    assert (settings.objective, settings.better.value, settings.limits[0].value) == ("wall_s", "higher", 5.0)
