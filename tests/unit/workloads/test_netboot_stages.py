"""The phases of a boot from QEMU's trace and the packets' clock, and the report's advice on rounds."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from guestmark.capture.model import Exchange, Message, RoundTrips, Trace
from guestmark.capture.startup import describe_startup, find_startup
from guestmark.core.metric import Measurement
from guestmark.core.model import TrialStatus
from guestmark.page.nodes import Note
from guestmark.stats.analysis import analyse_run
from guestmark.workloads.netboot import DOWNLOAD, figures, sections
from guestmark.workloads.netboot.machine import CardLog
from tests.framework.known import known
from tests.framework.processes import wait_until
from tests.framework.runs import host_uml_tcg

SECOND = 1_000_000_000


def lease(start_s: float, seconds: float, server: str | None = "10.0.2.2") -> Exchange:
    messages = [Message(0.0, True, "discover"), Message(seconds, False, "ack")]
    return Exchange(
        "dhcp", "52-54", server, None, round(start_s * SECOND), seconds, seconds, 0.0, 0.0, 0, 0, 0, 0,
        RoundTrips(), messages, granted_s=seconds if server else None,
    )  # fmt: skip


def transfer(start_s: float, seconds: float) -> Exchange:
    begun = lease(start_s, seconds)
    return msgspec.structs.replace(
        begun, protocol="tftp", name="boot.ipxe", bytes=1000, count=2, granted_s=None
    )


def trace(*exchanges: Exchange) -> Trace:
    empty: dict[str, object] = {
        "file": "", "connections": [], "format": None, "compression": None, "connection_count": 0, "start_ns": None,
        "shares": {"client": None, "server": None, "unknown": None}, "relative_error": 0.0, "counters": {},
        "limits": [], "endpoints": [], "sequence": None, "error": None,
    }  # fmt: skip
    return msgspec.structs.replace(msgspec.convert(empty, Trace), exchanges=list(exchanges))


def lines(*written: tuple[str, int, int]) -> CardLog:
    """A log to which QEMU has written these: device, register, value."""
    log = CardLog()
    text = "".join(
        f"pci_cfg_write {device} 00:02.0 @0x{register:x} <- 0x{value:x}\n"
        for device, register, value in written
    )
    os.write(log.fd, text.encode())
    log.close_inherited()
    log.close_inherited()
    return log


@pytest.mark.parametrize(
    ("written", "known_of"),
    [
        # What firmware writes first: sizes of regions, and a command without the right to use memory.
        ([("e1000", 0x4, 0x103), ("e1000", 0x30, 0xFEB80001), ("e1000", 0x4, 0x107)], "e1000"),
        ([("ne2k_pci", 0x30, 0xFFFFFFFF), ("ne2k_pci", 0x30, 0xFEB80001)], "ne2k_pci"),
        ([("e1000", 0x4, 0x103), ("e1000", 0x30, 0xFFFFFFFF), ("rtl8139", 0x4, 0x107)], ""),
        ([], ""),
    ],
)
def test_when_the_card_is_taken(written: Sequence[tuple[str, int, int]], known_of: str) -> None:
    before = time.monotonic()
    log = lines(*written)
    if known_of:
        assert wait_until(lambda: log.find_enabling_time(known_of) is not None, 5.0)
        assert before <= known(log.find_enabling_time(known_of)) <= time.monotonic()
    else:
        time.sleep(0.05)
        assert log.find_enabling_time("e1000") is None


def test_phases_add_up_and_one_that_is_unknown_is_in_the_next() -> None:
    phases = {figures.CARD: 0.2, figures.LINK: 2.2, figures.ADDRESS: 5.2, figures.READY: 5.5}
    found = {measured.metric.name: measured.value for measured in figures.measure_start(phases)}
    assert found == pytest.approx({"rom_s": 0.2, "link_s": 2.0, "dhcp_s": 3.0, "script_s": 0.3})
    del phases[figures.CARD], phases[figures.ADDRESS]
    found = {measured.metric.name: measured.value for measured in figures.measure_start(phases)}
    assert found == pytest.approx({"link_s": 2.2, "script_s": 3.3})


def test_without_connections_both_clocks_have_nothing_in_common() -> None:
    assert figures.find_first_packets(trace(lease(100.0, 3.0)), 80, [7.0]) == {}


def test_what_follows_a_lease() -> None:
    found = known(
        find_startup(
            trace(lease(100.0, 3.0), transfer(99.0, 1.0), transfer(110.0, 1.0), transfer(110.5, 1.5))
        )
    )
    assert (found.address_s, found.waiting_s, found.fetched, found.bytes) == (3.0, 7.0, 2, 2000)
    assert found.fetching_s == pytest.approx(2.0)  # what overlaps counts once
    assert found.between_s == pytest.approx(0.0)
    assert find_startup(trace(transfer(1.0, 1.0))) is None
    assert find_startup(trace(lease(100.0, 3.0, server=None), transfer(110.0, 1.0))) is None
    assert describe_startup(trace(lease(100.0, 3.0))) is None


def test_a_run_says_how_many_rounds_are_best() -> None:
    generator = np.random.default_rng(3)
    run = host_uml_tcg()
    made = []
    for trial in run.trials:
        assert trial.status is TrialStatus.OK
        boot = generator.normal(0, 0.01)
        values = tuple(np.exp(boot + generator.normal(0, 0.06, 2)).tolist())
        made.append(
            replace(
                trial,
                measurements=(Measurement(DOWNLOAD, values[0], values),),
                run_s=(1.0, 1.0),
                duration_s=8.0,
            )
        )
    run = replace(run, trials=tuple(made), plan=replace(run.plan, metrics=(DOWNLOAD,)))
    (note,) = sections.render_rounds(analyse_run(run.plan, run.trials).workloads[0], run)
    assert isinstance(note, Note)
    said = "".join(span.text for span in note.text)
    assert "takes 6.0 s and a round 1.0 s" in said
    assert "this run has 2" in said
