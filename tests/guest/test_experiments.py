"""Every published experiment still runs from end to end, each in its shortest form."""

import pytest
from bench.experiments.__main__ import EXPERIMENTS, Experiment, judge_document, run_experiment

from tests.framework.marks import long


@pytest.mark.timeout(600)
def test_a_network_boot_inside_kvm_runs() -> None:
    """The cheapest look at KVM's own path, in a guest whose kernel is older than this host's."""
    (experiment,) = (each for each in EXPERIMENTS if each.platforms == ("tcg/kvm",))
    assert run_experiment(experiment).problems == []


@pytest.mark.alone
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "experiment", [long(each) for each in EXPERIMENTS if not each.foreign], ids=lambda each: str(each.name)
)
def test_a_published_experiment_runs(experiment: Experiment) -> None:
    outcome = run_experiment(experiment)
    assert outcome.problems == []
    assert all(outcome.good.values())


def test_what_is_missing_or_failed_is_named() -> None:
    trials = [{"status": "ok"}, {"status": "failed", "reason": "no answer"}]
    document: dict[str, object] = {"cells": [{"id": "a tcg", "platform": "tcg", "trials": trials}]}
    good, problems = judge_document(document, ("tcg", "uml"))
    assert good == {"tcg": 1, "uml": 0}
    assert problems == ["a tcg: no answer", "uml: nothing was measured"]
