"""Databases that cannot be measured: servers that do not start, die or end uncleanly, on the host itself."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from guestmark.core.errors import GuestmarkError, MachineError, WorkloadError
from guestmark.core.findings import Program
from guestmark.platforms.base import Machine
from guestmark.workloads.oltp import SERVER
from guestmark.workloads.oltp.databases import KINDS
from guestmark.workloads.oltp.databases.base import Account
from tests.framework.databases import SERVERS, started
from tests.framework.known import known
from tests.framework.processes import gone, others, started_at


def processes_at(machine: Machine) -> dict[int, list[bytes]]:
    """Ids and command lines of the processes that name the machine's directory."""
    directory = machine.disks[0].directory.encode()
    return {int(at.name): words for at, words in others() if any(directory in word for word in words)}


def servers_of(machine: Machine) -> list[int]:
    """Process ids of what serves the machine's directory, the server itself first."""

    def serves(first: bytes, *more: bytes) -> bool:
        return b"sysbench" not in first and more[:1] not in ((b"connect",), (b"confine",))

    return sorted((pid for pid, words in processes_at(machine).items() if serves(*words)), key=started_at)


@pytest.mark.parametrize("server", SERVERS)
def test_transactions_are_measured_and_the_server_ends_cleanly(server: str) -> None:
    with started(server=server) as (machine, workload):
        directory = Path(machine.disks[0].directory)
        workload.prepare(machine)
        process = servers_of(machine)[0]
        status = Path(f"/proc/{process}/status").read_text()
        assert f"\nUid:\t{Account.choose_account(os.getuid(), os.getgid()).uid}\t" in status
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        workload.cleanup(machine)
        assert not processes_at(machine)
    assert values["transactions_per_s"] > 1
    assert values["queries_per_s"] == pytest.approx(20 * values["transactions_per_s"], rel=0.05)
    assert values["latency_p95_s"] >= values["latency_min_s"] > 0
    assert values["host_flushes_per_transaction"] == values["server_flushes_per_transaction"] > 0.2
    assert not directory.exists()
    assert workload.warnings == []
    program = known(workload.facts.facts().find_fact(Program, SERVER))
    assert program.sha256 == program.host_sha256
    assert workload.facts.facts().kept["server_stop_s"] > 0
    assert workload.facts.facts().kept["server"].startswith(f"{KINDS[server].title} 1")
    with started(server=server) as (_, again):
        assert again.facts.facts().kept["database_from_cache"]
        assert again.facts.facts().kept["database_prepared_s"] < 0.3


def test_a_server_that_does_not_start_shows_its_log() -> None:
    trial = started(settings={"no_such_setting": 1})
    with pytest.raises(
        MachineError, match=r"MariaDB did not start .*unknown variable 'no-such-setting=1'"
    ) as caught:
        trial.__enter__()
    assert "--- log of MariaDB ---" in caught.value.console


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_is_killed_in_the_middle_is_the_reason(server: str) -> None:
    with started(server=server, time="20") as (machine, workload):
        workload.prepare(machine)
        process = servers_of(machine)[0]
        killer = threading.Timer(1.0, os.kill, (process, signal.SIGKILL))
        killer.start()
        begin = time.monotonic()
        with pytest.raises(MachineError, match="exited while in use: killed by SIGKILL; its log: ") as caught:
            workload.run(machine)
        assert time.monotonic() - begin < 19
        workload.cleanup(machine)
        assert not processes_at(machine)
    assert KINDS[server].ready.decode() in caught.value.console
    assert KINDS[server].ready.decode() in workload.facts.facts().kept["server_log"]


def test_a_server_that_does_not_end_cleanly_fails_the_trial() -> None:
    with contextlib.ExitStack() as stack:
        machine, workload = stack.enter_context(started())
        workload.prepare(machine)
        workload.run(machine)
        os.kill(servers_of(machine)[0], signal.SIGKILL)
        with pytest.raises(WorkloadError, match="not shut down cleanly"):
            workload.cleanup(machine)
        leave = stack.pop_all()
    # the trial goes on to the machine's end, and fails there
    with pytest.raises(MachineError, match="did not shut down cleanly: killed by SIGKILL"):
        leave.close()


def test_nothing_of_a_server_survives_its_agent() -> None:
    with contextlib.suppress(GuestmarkError), started() as (machine, workload):
        workload.prepare(machine)
        processes = servers_of(machine)
        assert processes
        machine.agent.close()
    assert gone(*processes, seconds=10)
