"""Real database servers in real guests."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.findings import Program
from guestmark.platforms.base import HasNetwork
from guestmark.platforms.network.links import describe_link
from guestmark.platforms.network.trial_network import TrialNetwork
from guestmark.workloads.oltp import SERVER
from guestmark.workloads.oltp.trial import OltpTrial
from tests.framework.command_line import CommandLine
from tests.framework.databases import SERVERS, started
from tests.framework.known import known
from tests.framework.marks import long


def values_of(
    platform: str, factors: Mapping[str, str] | None = None, **given: Any
) -> tuple[dict[str, float], OltpTrial]:
    with started(platform, {"memory": "512M", "size": "256M", **(factors or {})}, **given) as (
        machine,
        workload,
    ):
        workload.prepare(machine)
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        workload.cleanup(machine)
    return values, workload


def checked(values: Mapping[str, float], workload: OltpTrial) -> None:
    assert values["transactions_per_s"] > 0.2
    assert values["guest_flushes_per_transaction"] > 0.2
    assert values["server_flushes_per_transaction"] > 0.2
    program = known(workload.facts.facts().find_fact(Program, SERVER))
    assert program.sha256 == program.host_sha256
    assert "Shutdown complete" not in workload.facts.facts().kept.get("server_log", "")
    assert workload.facts.facts().kept["server_stop_s"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "factors", [{"filesystem": "xfs", "size": "512M"}, {"format": "qcow2", "cache": "none"}]
)
def test_mariadb_in_tcg(factors: dict[str, str]) -> None:
    values, workload = values_of("tcg", factors, test="write_only")
    checked(values, workload)
    assert workload.facts.facts().kept["flushes_reached_host"] == "yes"
    assert values["host_flushes_per_transaction"] == pytest.approx(values["guest_flushes_per_transaction"])


@pytest.mark.long
@pytest.mark.parametrize("uml_disk", [long("ubd"), "vhost-user"])
def test_commits_in_uml_are_as_durable_as_its_disk(uml_disk: str) -> None:
    values, workload = values_of("uml", {"uml_disk": uml_disk}, test="write_only")
    checked(values, workload)
    if workload.facts.facts().kept["flushes_reached_host"] != "unknown":
        assert workload.facts.facts().kept["flushes_reached_host"] == (
            "yes" if uml_disk == "vhost-user" else "no"
        )
        flushed = values["host_flushes_per_transaction"]
        assert flushed == (values["guest_flushes_per_transaction"] if uml_disk == "vhost-user" else 0)


@pytest.mark.long
def test_mariadb_in_a_guest_inside_a_guest() -> None:
    values, workload = values_of("tcg/kvm")
    checked(values, workload)
    assert workload.facts.facts().kept["flushes_reached_host"] == "yes"


@pytest.mark.long
def test_postgresql_in_guests() -> None:
    for platform in ("uml", "tcg"):
        checked(*values_of(platform, server="postgresql"))


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    ("platform", "network"),
    [("host", "veth"), long("host", "pasta"), long("tcg", "tap"), long("tcg", "passt"), long("uml", "tap")],
)
def test_a_client_on_the_peer_asks_over_the_network(server: str, platform: str, network: str) -> None:
    if (server, network) == ("mariadb", "passt"):
        pytest.skip(
            "MariaDB speaks first, and Debian 12's passt completes no handshake before the client does"
        )
    factors = {"network": network, "client": "peer"}
    if platform != "host":
        factors |= {"memory": "512M", "size": "256M"}
    with started(platform, factors, server=server) as (machine, workload):
        # As in a trial: passt knows a machine once it has heard of it.
        machine.attest()
        workload.prepare(machine)
        assert isinstance(machine, HasNetwork)
        assert isinstance(machine.network, TrialNetwork)
        # pasta joins the sockets of both loopbacks.
        link = "lo" if network == "pasta" else machine.network.machine_name
        before = describe_link(machine.agent, link).rx_packets
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        packets = describe_link(machine.agent, link).rx_packets - before
        workload.cleanup(machine)
    # One packet asks for more than one statement at most where they are sent together.
    asked = values["queries_per_s"] * values["wall_s"]
    assert packets > asked / 2
    assert values["server_flushes_per_transaction"] > 0.2
    assert "guest_wall_s" not in values
    assert workload.facts.facts().kept["client_side"] == "peer"


def test_a_client_on_the_peer_needs_a_network(guestmark: CommandLine) -> None:
    (guestmark.folder / "mine.toml").write_text(
        'schema = "guestmark-plan/2"\nname = "mine"\ntitle = "mine"\nplatforms = ["host"]\n[workloads.oltp]\n'
    )
    refused = guestmark("run", "mine.toml", "--set", "client=peer")
    assert refused.status == 2
    assert "needs a network" in refused.stderr
    assert "--set network=" in refused.stderr


@pytest.mark.long
def test_a_guest_without_enough_memory_is_the_reason() -> None:
    with contextlib.ExitStack() as stack:
        machine, workload = stack.enter_context(started("uml", {"memory": "72M", "size": "256M"}))
        with pytest.raises(MachineError, match=r"MariaDB .*(out of memory|Cannot allocate)") as caught:
            workload.prepare(machine)
        workload.cleanup(machine)
    assert "--- log of MariaDB ---" in caught.value.console
    assert "memory" in caught.value.hint


@pytest.mark.long
@pytest.mark.parametrize(
    "server",
    [
        SERVERS[0],
        *(pytest.param(*each.values, marks=(*each.marks, pytest.mark.long)) for each in SERVERS[1:]),
    ],
)
def test_a_disk_that_has_become_full_is_the_reason(server: str) -> None:
    given = {"server": server, "test": "write_only", "time": "30", "rows": 2000}
    with contextlib.ExitStack() as stack:
        machine, workload = stack.enter_context(started("uml", {"memory": "512M", "size": "256M"}, **given))
        workload.prepare(machine)
        file = f"of={machine.disks[0].directory}/fill"
        # PostgreSQL's log needs more room all the time. MariaDB's tables grow at once, when their full pages are first
        # written to, and then hardly.
        if server == "postgresql":
            machine.agent.background(["sh", "-c", f"sleep 2; exec dd if=/dev/zero {file} bs=64k"])
        else:
            machine.agent.exec(["dd", "if=/dev/zero", file, "bs=64k"], timeout_s=60)
        with pytest.raises((MachineError, WorkloadError)) as caught:
            workload.run(machine)
        workload.cleanup(machine)
    assert "its disk has 0.0 MB free" in caught.value.message
    assert "--set size=" in caught.value.hint
    assert workload.facts.facts().kept["server_log"]
