"""The workload `service` on this host: what a server does that dies, never is ready, leaks or answers errors."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.core.errors import GuestmarkError, PlatformUnusableError, UsageError, WorkloadError
from guestmark.core.metric import Measurement
from guestmark.platforms.base import HasNetwork, Machine
from guestmark.platforms.host_like import Host
from guestmark.workloads.base import create_trial
from guestmark.workloads.service import Served
from guestmark.workloads.service.trial import ServiceTrial
from tests.framework import guests
from tests.framework.cells import cell_of, plan_of, spec

WEB = ["python3", "-m", "http.server", "{port}", "--bind", "{address}"]
ASK = """
import time, urllib.request
begun = time.monotonic()
for _ in range(20):
    urllib.request.urlopen("http://{address}:{port}/").read()
print(f"requests: {20 / (time.monotonic() - begun)}")
"""
CLIENT = ["python3", "-c", ASK]
METRICS = ["requests:1/s:higher=requests: ([0-9.]+)"]


@contextlib.contextmanager
def started(**params: Any) -> Iterator[tuple[ServiceTrial, Host]]:
    """The workload on this host, both sides on one, on a port that is free."""
    with socket.create_server(("0.0.0.0", 0)) as free:
        port = free.getsockname()[1]
    given = {"server": WEB, "client": CLIENT, "side": "same", "port": port, "metrics": METRICS, **params}
    cell = cell_of("host", "service", **given)
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        machine = Host(agent, ())
        trial = create_trial(plan_of(cell), cell)
        assert isinstance(trial, ServiceTrial)
        try:
            yield trial, machine
        finally:
            trial.cleanup(machine)
        left = agent.exec(["sh", "-c", "ls -d /dev/shm/guestmark-service-* 2>&1"], timeout_s=9)
        assert trial._directory.startswith("/dev/shm/")
        assert trial._directory.encode() not in left.stdout


def run(**params: Any) -> dict[str, float]:
    with started(**params) as (trial, machine):
        trial.prepare(machine)
        return by_name(trial.run(machine))


def by_name(measured: list[Measurement]) -> dict[str, float]:
    return {measurement.metric.name: measurement.value for measurement in measured}


def failure(**params: Any) -> GuestmarkError:
    with pytest.raises(WorkloadError) as raised:
        run(**params)
    return raised.value


def test_a_server_is_measured_by_what_its_client_prints() -> None:
    found = run()
    assert set(found) == {"requests", "wall_s"}
    assert found["requests"] > 1


def test_files_setup_and_load_come_before_the_client() -> None:
    found = run(
        files={"index.html": "port {port}"},
        setup=["sh", "-c", "cp index.html made.html"],
        load=["python3", "-c", "import urllib.request as u; u.urlopen('http://{address}:{port}/made.html')"],
        client=[
            "python3", "-c",
            "import urllib.request as u; print(u.urlopen('http://{address}:{port}/made.html').read().decode())",
        ],
        metrics=["port::lower=port ([0-9]+)"],
    )  # fmt: skip
    assert found["port"] > 1000


def test_a_server_that_dies_at_once_says_why() -> None:
    error = failure(server=["sh", "-c", "echo no configuration >&2; exit 3"])
    assert error.message == "the server exited with status 3 before it was ready"
    assert "no configuration" in error.hint


def test_a_server_that_never_is_ready_is_not_a_slow_one() -> None:
    error = failure(server=["sleep", "60"], ready_within="0.5s")
    assert "was not ready within 0.5s" in error.message
    assert "Connection refused" in error.message


def test_a_server_that_accepts_too_early_is_waited_for() -> None:
    """It answers with an error until its page is there."""
    server = [
        "sh",
        "-c",
        "(sleep 0.7; echo made > page) & exec python3 -m http.server {port} --bind {address}",
    ]
    ask = ["python3", "-c", "import urllib.request as u; u.urlopen('http://{address}:{port}/page')"]
    assert "wall_s" in run(server=server, ready=ask, client=ask, metrics=[])
    error = failure(server=WEB, ready=ask, ready_within="0.5s")
    assert "404" in error.message


def test_a_readiness_command_that_goes_on_for_too_long_is_named() -> None:
    begun = time.monotonic()
    error = failure(ready=["sleep", "200"], ready_within="1s")
    assert time.monotonic() - begun < 30
    assert "was not ready within 1s: sleep 200: it took longer" in error.message
    assert "false: exited with status 1" in failure(ready=["false"], ready_within="1s").message


def test_a_port_that_is_in_use_is_not_measured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failure(server=["sleep", "9"], port=port)
    assert error.message == f"port {port} is in use where the server is to listen"


def test_a_server_beside_its_client_is_open_to_nobody_else() -> None:
    with started(
        server=["sh", "-c", "echo {address}; exec python3 -m http.server {port} --bind {address}"]
    ) as (
        trial,
        machine,
    ):
        trial.prepare(machine)
        listening = machine.agent.read_file("/proc/net/tcp").decode().split()
    mine = {word for word in listening if word.endswith(f":{trial.params.port:04X}")}
    assert mine == {f"0100007F:{trial.params.port:04X}"}


def test_a_server_on_another_port_is_found_there() -> None:
    with socket.create_server(("0.0.0.0", 0)) as free:
        other = free.getsockname()[1]
    server = ["python3", "-m", "http.server", str(other)]
    error = failure(server=server, ready_within="2s")
    assert f"it listens on {other}" in error.message


def test_a_server_that_listens_on_more_than_its_port_is_noticed() -> None:
    with socket.create_server(("0.0.0.0", 0)) as free:
        other = free.getsockname()[1]
    imports = "import http.server as h, socketserver as s"
    more = f"{imports}; x = s.TCPServer(('0.0.0.0', {other}), h.BaseHTTPRequestHandler)"
    serve = "; h.HTTPServer(('{address}', {port}), h.SimpleHTTPRequestHandler).serve_forever()"
    with started(server=["python3", "-c", more + serve]) as (trial, machine):
        trial.prepare(machine)
        served = trial.facts.facts().find_fact(Served)
        assert served is not None
        assert served.other_ports == [other]


def test_a_server_that_dies_under_its_client_is_told_from_a_slow_one() -> None:
    error = failure(server=["timeout", "1.5", *WEB], client=["sleep", "2.5"], metrics=[])
    assert error.message == "the server exited with status 124 while its client ran"


def test_a_server_that_answers_errors_has_no_figures() -> None:
    client = ["sh", "-c", "echo '  Non-2xx or 3xx responses: 7'; echo requests: 5"]
    error = failure(client=client, errors="Non-2xx or 3xx responses: [0-9]+")
    assert error.message == "the server answers with errors: Non-2xx or 3xx responses: 7"


def test_a_client_that_fails_says_why() -> None:
    error = failure(client=["sh", "-c", "echo cannot connect >&2; exit 4"])
    assert error.message == "the client exited with status 4: cannot connect"


@pytest.mark.parametrize("side", ["machine", "peer"])
def test_without_a_network_only_one_side_is_possible(side: str) -> None:
    assert failure(side=side).message == "the machine has no network"
    cell = cell_of("host", "service", server=WEB, client=CLIENT, side=side)
    with pytest.raises(UsageError, match="service needs a network"):
        ServiceTrial.check_request(plan_of(cell), [cell])
    same = cell_of("host", "service", server=WEB, client=CLIENT, side="same")
    ServiceTrial.check_request(plan_of(same), [same])


@pytest.mark.parametrize("level", ["vsock", "existing"])
@pytest.mark.parametrize("side", ["machine", "peer"])
def test_a_server_is_not_opened_to_others(side: str, level: str) -> None:
    cell = cell_of("tcg", "service", {"network": level}, server=WEB, client=CLIENT, side=side)
    with pytest.raises(UsageError, match=f"network={level}"):
        ServiceTrial.check_request(plan_of(cell), [cell])


@pytest.fixture(scope="module")
def joined() -> Iterator[Machine]:
    with guests.start("host", network="veth") as machine:
        yield machine


@pytest.mark.parametrize("side", ["machine", "peer"])
def test_server_and_client_are_on_different_sides(joined: Machine, side: str) -> None:
    cell = cell_of("host", "service", server=WEB, client=CLIENT, side=side, metrics=METRICS)
    trial = create_trial(plan_of(cell), cell)
    try:
        trial.prepare(joined)
        assert by_name(trial.run(joined))["requests"] > 1
        served = trial.facts.facts().find_fact(Served)
        assert served is not None
        assert isinstance(joined, HasNetwork)
        assert joined.network is not None
        assert (served.address == joined.network.peer_address) == (side == "peer")
    finally:
        trial.cleanup(joined)


def across(joined: Machine, **params: Any) -> ServiceTrial:
    """The workload with its server on the machine and its client on the peer."""
    cell = cell_of(
        "host", "service", server=params.pop("server", WEB), client=CLIENT, metrics=METRICS, **params
    )
    trial = create_trial(plan_of(cell), cell)
    assert isinstance(trial, ServiceTrial)
    return trial


def test_a_server_across_a_network_that_dies_at_once_says_why(joined: Machine) -> None:
    trial = across(joined, server=["sh", "-c", "echo no configuration >&2; exit 3"])
    try:
        with pytest.raises(
            WorkloadError, match="the server exited with status 3 before it was ready"
        ) as raised:
            trial.prepare(joined)
        assert "no configuration" in raised.value.hint
    finally:
        trial.cleanup(joined)


def test_what_forwards_a_port_is_not_the_server() -> None:
    """It accepts connections at once, whether anything listens on the machine or not."""
    with guests.start("host", network="pasta") as machine:
        trial = across(machine, server=["sleep", "60"], ready_within="1s")
        try:
            with pytest.raises(
                WorkloadError, match=r"was not ready within 1s: port 20000: .*Connection refused"
            ):
                trial.prepare(machine)
        finally:
            trial.cleanup(machine)


def test_a_server_that_prints_much_is_not_stopped_by_it(joined: Machine) -> None:
    """More than any pipe and any queue of an agent holds, while only the client's end is asked."""
    chatty = "import sys, http.server as h\nclass H(h.SimpleHTTPRequestHandler):\n"
    chatty += " def log_message(self, *_): sys.stderr.write('x' * (1 << 20) + chr(10))\n"
    chatty += "h.HTTPServer(('{address}', {port}), H).serve_forever()"
    trial = across(joined, server=["python3", "-c", chatty])
    try:
        trial.prepare(joined)
        assert by_name(trial.run(joined))["requests"] > 1
    finally:
        trial.cleanup(joined)


@pytest.mark.parametrize(
    ("network", "port", "words"),
    [("tap", 80, "1024 to 32767"), ("user", 5432, "20000 to 20015"), ("slirp4netns", 20000, "params.side")],
)
def test_a_port_that_no_peer_reaches_is_refused(network: str, port: int, words: str) -> None:
    cell = cell_of("tcg", "service", {"network": network}, server=WEB, client=CLIENT, port=port)
    with pytest.raises(UsageError, match=f"port {port} of a machine with network={network}") as raised:
        ServiceTrial.check_request(plan_of(cell), [cell])
    assert words in raised.value.hint


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"setup": ["x", "{adress}"]}, "is not a placeholder"),
        ({"server": []}, "its name is empty"),
        ({"server": ["x", "{host}"]}, "is not a placeholder"),
        ({"side": "both"}, "machine"),
        ({"port": 0}, "greater than or equal to 1"),
        ({"errors": "("}, "not a valid regular expression"),
        ({"ready_within": "1h"}, "10 min"),
        ({"files": {"../x": ""}}, "is not a valid file name"),
        ({"metrics": ["x=perf:cycles"]}, "perf|client's output|event"),
    ],
)
def test_parameters_that_cannot_be_are_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises((ValidationError, ValueError, UsageError), match=words):
        spec("service", **{"server": WEB, "client": CLIENT, **params})


def test_a_program_that_is_missing_is_named_before_the_first_trial() -> None:
    cell = cell_of("host", "service", server=["no-such-server"], client=CLIENT)
    with pytest.raises(PlatformUnusableError, match="no-such-server is not installed here"):
        ServiceTrial.preflight(plan_of(cell), [cell])
