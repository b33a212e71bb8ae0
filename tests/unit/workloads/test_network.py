"""The workload `network` between two namespaces of this host, its parameters, its plan and its part of a report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.wire import TrafficTest
from guestmark.core import registry
from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric import Better
from guestmark.plan.library import read_builtin
from guestmark.plan.load import load_outline
from guestmark.platforms.base import Machine
from guestmark.platforms.host_like import Host
from guestmark.workloads.base import create_trial
from guestmark.workloads.network import UPLOAD, UPLOAD_CPU, NetworkTests
from guestmark.workloads.network.trial import NetworkTrial
from tests.framework import guests
from tests.framework.cells import cell_of, plan_of, spec
from tests.framework.command_line import CommandLine

SHORT = "30ms"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with guests.start("host", network="veth") as machine:
        yield machine


def test_every_metric_that_is_announced_is_measured(machine: Machine) -> None:
    cell = cell_of("host", "network", time=SHORT, load=2, sizes=[64, 1400])
    trial = create_trial(plan_of(cell), cell)
    found = {measurement.metric: measurement.value for measurement in trial.run(machine)}
    announced = registry.workload_kind("network").metrics_of(cell.workload)
    assert tuple(found) == announced
    for metric, value in found.items():
        assert value >= 0 if metric.name.endswith("_lost") else value > 0, metric
        assert metric.better is (Better.HIGHER if metric.unit in {"bit/s", "1/s"} else Better.LOWER), metric
    tests = trial.facts.facts().find_fact(NetworkTests)
    assert tests is not None
    assert {test.test for test in tests.tests} == set(TrafficTest)


@pytest.mark.parametrize("tests", [["request"], ["download", "upload"], ["datagrams_down"]])
def test_a_plan_may_name_some_tests(machine: Machine, tests: list[str]) -> None:
    cell = cell_of("host", "network", time=SHORT, tests=tests, sizes=[500])
    trial = create_trial(plan_of(cell), cell)
    metrics = [measurement.metric for measurement in trial.run(machine)]
    assert metrics == list(registry.workload_kind("network").metrics_of(cell.workload))


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"tests": ["datagrams_up", "datagrams_down"]}, "vsock carries no datagrams"),
        ({"tests": ["upload"], "capture": True}, "no packets that could be captured"),
    ],
)
def test_what_sockets_without_packets_cannot_do_is_refused(params: dict[str, Any], why: str) -> None:
    cell = cell_of("tcg", "network", {"network": "vsock"}, **params)
    with pytest.raises(UsageError, match=why):
        NetworkTrial.check_request(plan_of(cell), [cell])


def test_sockets_without_packets_are_enough_for_the_other_tests() -> None:
    cell = cell_of("tcg", "network", {"network": "vsock"})
    NetworkTrial.check_request(plan_of(cell), [cell])


@pytest.mark.skipif(
    shutil.which("dumpcap") is None and shutil.which("tcpdump") is None, reason="no tool captures"
)
def test_captures_on_request_tell_what_a_stream_waited_for(machine: Machine) -> None:
    cell = cell_of("host", "network", time=SHORT, tests=["upload", "connect"], capture=True)
    trial = create_trial(plan_of(cell), cell)
    trial.run(machine)
    kept = trial.facts.facts().find_fact(NetworkTests)
    assert kept is not None
    upload, connect = kept.tests
    assert upload.cause is not None
    assert "%" in upload.cause
    assert connect.cause is None


@pytest.mark.skipif(shutil.which("pasta") is None, reason="pasta is not installed")
def test_processor_time_between_the_ends_is_part_of_the_cost() -> None:
    cell = cell_of("host", "network", time=SHORT, tests=["upload"])
    with guests.start("host", network="pasta") as machine:
        trial = create_trial(plan_of(cell), cell)
        found = {measurement.metric: measurement.value for measurement in trial.run(machine)}
    kept = trial.facts.facts().find_fact(NetworkTests)
    assert kept is not None
    (upload,) = kept.tests
    assert upload.mover_cpu_s is not None
    moved = found[UPLOAD] / 8 * upload.elapsed_s
    spent = upload.client_cpu_s + upload.mover_cpu_s + upload.peer_cpu_s
    assert upload.mover_cpu_s > 0
    assert found[UPLOAD_CPU] == pytest.approx(spent / moved * 1e9)


def test_a_machine_without_a_network_costs_one_line() -> None:
    cell = cell_of("host", "network", time=SHORT)
    _, transport = start_host_agent()
    with Agent(transport) as agent, pytest.raises(WorkloadError, match="the machine has no network"):
        create_trial(plan_of(cell), cell).run(Host(agent, ()))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"tests": ["uplod"]}, "unknown test .uplod."),
        ({"tests": []}, "no test is named"),
        ({"time": "1ms"}, "is not between"),
        ({"time": "2min"}, "is not between"),
        ({"sizes": [15]}, "16 to 65507 bytes"),
        ({"sizes": [65508]}, "16 to 65507 bytes"),
        ({"sizes": [64, 64]}, "different"),
        ({"sizes": []}, "one or more"),
        ({"flows": 0}, "greater than or equal to 1"),
        ({"request": 0}, "greater than or equal to 1"),
    ],
)
def test_parameters_that_cannot_be_are_refused(params: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec("network", **params)


def test_the_plan_loads() -> None:
    outline = load_outline(read_builtin("network"), "network")
    (entry,) = outline.shape.entries
    announced = {metric.name for metric in registry.workload_kind("network").metrics_of(entry.workload)}
    assert {metric.name for metric in outline.metrics} <= announced


PLAN = """
schema = "guestmark-plan/2"
name = "mine"
title = "What does a queue add?"
platforms = ["host"]

[workloads.network]
factors.network = "veth"
params.tests = ["upload", "request", "request_in_upload"]
params.time = "20ms"

[repetition]
blocks = 1
null = "none"
"""


def test_a_run_says_who_worked_and_what_a_queue_adds(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PLAN)
    done = guestmark("run", "mine.toml", cwd=tmp_path)
    assert done.status == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Latency under load: alone streams up adds" in said
    assert "streams down" not in said
    assert "host, up: program " in said
    assert " send buffer " in said


def test_a_run_without_a_network_fails_in_one_line(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PLAN.replace('factors.network = "veth"\n', ""))
    done = guestmark("run", "mine.toml", cwd=tmp_path)
    assert done.status == 2
    assert done.stderr.splitlines()[-2:] == [
        "guestmark: host: network needs a network, but the machine has none",
        "  add one: --set network=tap for guests, --set network=veth for others",
    ]


@pytest.mark.parametrize("name", ["rootless-network", "uml-network", "web", "redis", "postgres", "move"])
def test_the_plans_made_of_networks_load(name: str) -> None:
    outline = load_outline(read_builtin(name), name)
    assert outline.questions
