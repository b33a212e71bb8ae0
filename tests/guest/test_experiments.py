"""Every published experiment still runs from end to end, each in its shortest form."""

from dataclasses import replace
from typing import Any

import pytest
from bench.experiments.__main__ import EXPERIMENTS, Experiment, judge_document, run_experiment

(INSIDE_KVM,) = (each for each in EXPERIMENTS if each.platforms == ("tcg/kvm",))


@pytest.mark.timeout(600)
def test_a_network_boot_inside_kvm_runs() -> None:
    """The cheapest look at KVM's own path, in a guest whose kernel is older than this host's."""
    assert run_experiment(INSIDE_KVM).problems == []


def list_parameters() -> list[Any]:
    """The experiments; libguestfs gives its guests so little time that they need the machine to themselves.

    Its appliance in each kind of outer guest takes a quarter of an hour, and has tests of its own.
    """
    found = []
    for experiment in EXPERIMENTS:
        if experiment.foreign or experiment == INSIDE_KVM:
            continue
        if experiment.name == "backends":
            bare = replace(experiment, platforms=("uml", "tcg"))
            found.append(pytest.param(bare, id=bare.name, marks=[pytest.mark.long, pytest.mark.alone]))
            marks = [pytest.mark.long, pytest.mark.alone, pytest.mark.thorough]
            found.append(pytest.param(experiment, id=f"{experiment.name}, nested", marks=marks))
        else:
            found.append(pytest.param(experiment, id=experiment.name, marks=pytest.mark.long))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("experiment", list_parameters())
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
