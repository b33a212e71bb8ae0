"""Which part of a run that was left out makes its exit status 1."""

from dataclasses import replace

import pytest

from guestmark.cli.measure import derive_exit_status
from guestmark.core.errors import ExitStatus
from guestmark.core.model import LeftOut, Question, QuestionKind, RunState
from guestmark.core.platform_spec import parse_platforms
from guestmark.engine.question_status import keep_answerable_questions
from tests.framework.runs import host_uml_tcg

QUESTION = Question("Which is fastest?", QuestionKind.BEST)


@pytest.mark.parametrize(
    ("asks", "named", "status"),
    [
        (False, False, ExitStatus.SOME_FAILED),
        (True, False, ExitStatus.ALL_MEASURED),
        (True, True, ExitStatus.SOME_FAILED),
    ],
)
def test_a_platform_nobody_named_is_no_failure_of_a_plan_with_questions(
    asks: bool, named: bool, status: ExitStatus
) -> None:
    run = host_uml_tcg()
    (kvm,) = parse_platforms(["kvm"])
    cell = replace(run.plan.cells[-1], id="kvm", platform=kvm)
    plan = replace(
        run.plan,
        cells=(*run.plan.cells, cell),
        questions=(QUESTION,) if asks else (),
        context=replace(run.plan.context, named=(("kvm",),) if named else ()),
    )
    stored = replace(run, plan=plan, unusable=(LeftOut("kvm", "there is no /dev/kvm"),))

    assert derive_exit_status(stored, RunState.COMPLETE) is status
    whole = replace(stored, unusable=())
    assert derive_exit_status(whole, RunState.COMPLETE) is ExitStatus.ALL_MEASURED


@pytest.mark.parametrize("blocks", [1, 5, 12])
def test_blocks_that_answer_no_question_do_not_make_a_platform_a_requested_one(blocks: int) -> None:
    """`run syscalls --blocks 1` ended with another status than `run syscalls`."""
    run = host_uml_tcg(blocks=blocks)
    asked = replace(run.plan, questions=(QUESTION,), policy=replace(run.plan.policy, blocks=blocks))
    plan, _ = keep_answerable_questions(asked, run.unusable)
    stored = replace(run, plan=plan)
    assert stored.unusable
    assert derive_exit_status(stored, RunState.COMPLETE) is ExitStatus.ALL_MEASURED
