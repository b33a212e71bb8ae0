"""Packets at the ends of connections and captures that are no data, or not what they seem to be."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection, Trace
from tests.framework import captures as cf
from tests.framework.tcp_model import MSS, Model

BEGUN = 10**18
# The numbers before the first byte of each end; beyond 2^31, so that 0 is ahead of them.
C, S = 3_000_000_000, 3_500_000_000

Step = tuple[float, bool, int, int, int, bytes]


def look(folder: Path, packets: Sequence[cf.Packet]) -> Trace:
    path = folder / "ends.pcap"
    path.write_bytes(cf.pcap(packets, nanos=True))
    return analyse_file(path)


def talk(folder: Path, *steps: Step, window: int = 8192) -> Connection:
    """What is found of (milliseconds, sent by the client, flags, sequence number, acknowledgement, payload).

    Numbers count from the first byte of their sender.
    """
    packets = []
    for ms, by_client, flags, seq, ack, data in steps:
        ends = (cf.CLIENT, cf.SERVER) if by_client else (cf.SERVER, cf.CLIENT)
        own, other = (C, S) if by_client else (S, C)
        acked = other + 1 + ack if ack >= 0 else 0
        packet = cf.tcp(*ends, flags, own + 1 + seq, acked, data, window)
        packets.append(cf.Packet(BEGUN + round(ms * 1e6), cf.link(cf.ETHERNET, packet)))
    (found,) = look(folder, packets).connections
    return found


SHAKEN: tuple[Step, ...] = (
    (0, True, cf.SYN, -1, -1, b""),
    (20, False, cf.SYN | cf.ACK, -1, 0, b""),
    (20.1, True, cf.ACK, 0, 0, b""),
)
ASKED: tuple[Step, ...] = (
    (21, True, cf.ACK | cf.PSH, 0, 0, b"q" * 100),
    (42, False, cf.ACK | cf.PSH, 0, 100, b"a" * 200),
    (42.1, True, cf.ACK, 100, 200, b""),
)


def missing(found: Connection) -> int:
    return found.client.missing_bytes + found.server.missing_bytes


def repeats(found: Connection) -> tuple[int, int]:
    sides = (found.client, found.server)
    return sum(side.retransmissions for side in sides), sum(side.retransmitted_bytes for side in sides)


# ---- beginnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", ["both", "client", "server"])
def test_a_syn_that_was_cut_says_nothing_of_what_was_cut(scaled: str, tmp_path: Path) -> None:
    """The window is 64 kB, but its scale is in the last bytes of the SYNs."""
    options = b"\x02\x04\x05\xb4\x04\x02\x08\x0a" + bytes(8) + b"\x01\x03\x03\x07"
    model = Model(10)
    model.packet(0, True, cf.SYN, 0, 0, options=options)
    model.packet(10, False, cf.SYN | cf.ACK, 0, 1, options=options)
    model.packet(20, True, cf.ACK, 1, 1, window=500)
    model.packet(20, True, cf.ACK | cf.PSH, 1, 1, 100, window=500)
    now, seq = 30.0, 1
    for _ in range(40):
        for _ in range(4):
            model.packet(now, False, cf.ACK, seq, 101, MSS, window=500)
            seq += MSS
            model.packet(now + 10, True, cf.ACK, 101, seq, window=500)
        now += 20.1
    path = tmp_path / "model.pcap"
    path.write_bytes(model.seen_at(True))
    packets = list(cf.packets_of(path))
    (whole,) = look(tmp_path, packets).connections
    assert (whole.client.window_max, whole.confidence) == (500 << 7, "high")
    cut = {"both": (0, 1), "client": (0,), "server": (1,)}[scaled]
    for at in cut:
        packets[at] = cf.Packet(packets[at].ns, packets[at].data[:68], len(packets[at].data))
    trace = look(tmp_path, packets)
    (found,) = trace.connections
    assert found.causes.client_receive_buffer_s == 0
    assert found.causes.client_s is not None
    assert found.causes.client_s < 0.001
    assert found.confidence != "high"
    assert trace.counters["cut_options"] == len(cut)
    assert "cut_options" in {limit.kind for limit in trace.limits}
    # What one end announced is known, whatever was cut of the other's.
    assert found.client.window_max == (500 << 7 if scaled == "server" else 500)


def test_a_capture_that_begins_with_a_keep_alive_lacks_nothing(tmp_path: Path) -> None:
    alive: list[Step] = []
    for turn in range(3):
        alive += [
            (10_000.0 * turn, True, cf.ACK, -1, 0, b""),
            (10_000.0 * turn + 20, False, cf.ACK, 0, 0, b""),
        ]
    asked = [(30_000 + ms, *rest) for ms, *rest in ASKED]
    ends: list[Step] = [
        (30_050, True, cf.FIN | cf.ACK, 100, 200, b""),
        (30_070, False, cf.FIN | cf.ACK, 200, 101, b""),
        (30_070.1, True, cf.ACK, 101, 201, b""),
    ]
    found = talk(tmp_path, *alive, *asked, *ends)  # type: ignore[arg-type]
    assert (missing(found), repeats(found)) == (0, (0, 0))
    assert found.causes.unknown_s == 0
    assert found.causes.idle_s == pytest.approx(30.0, abs=0.1)
    found = talk(
        tmp_path, *alive, (30_050, True, cf.FIN | cf.ACK, 0, 0, b""), (30_070, False, cf.ACK, 0, 1, b"")
    )
    assert missing(found) == 0


def test_data_of_a_syn_that_the_server_did_not_take_were_not_lost(tmp_path: Path) -> None:
    early: tuple[Step, ...] = (
        (0, True, cf.SYN, -1, -1, b"q" * 100),
        (20, False, cf.SYN | cf.ACK, -1, 0, b""),
        (20.1, True, cf.ACK | cf.PSH, 0, 0, b"q" * 100),
    )
    answer: Step = (41, False, cf.ACK | cf.PSH, 0, 100, b"a" * 200)
    found = talk(tmp_path, *early, answer)
    assert (repeats(found), found.client.unique_bytes) == ((0, 0), 100)
    assert found.causes.recovery_s == 0
    assert found.server.rtt.max_s == pytest.approx(0.0209)
    # What is sent once more after that was lost.
    again: Step = (320.1, True, cf.ACK | cf.PSH, 0, 0, b"q" * 100)
    found = talk(tmp_path, *early, again, (341, *answer[1:]))
    assert repeats(found) == (1, 100)
    assert found.causes.recovery_s == pytest.approx(0.3)
    # The server takes the data of the SYN, and its first answer is lost.
    taken: Step = (20, False, cf.SYN | cf.ACK, -1, 100, b"")
    found = talk(tmp_path, early[0], taken, (320, *early[2][1:]), (341, *answer[1:]))
    assert repeats(found)[0] == 1


# ---- probes --------------------------------------------------------------------------------------------------


def test_keep_alives_with_a_byte_repeat_nothing(tmp_path: Path) -> None:
    alive: list[Step] = []
    for turn in range(1, 5):
        alive += [
            (10_000.0 * turn, True, cf.ACK, 99, 200, b"\0"),
            (10_000.0 * turn + 20, False, cf.ACK, 200, 100, b""),
        ]
    found = talk(tmp_path, *SHAKEN, *ASKED, *alive)
    assert repeats(found) == (0, 0)
    assert found.causes.recovery_s == 0
    assert found.causes.idle_s == pytest.approx(40.0, abs=0.2)


def test_probes_of_a_closed_window_repeat_nothing(tmp_path: Path) -> None:
    packets = []
    closed: list[tuple[float, bool, int, int, bytes, int]] = [
        (43, True, 100, 200, b"x" * 1000, 8192),
        (64, False, 200, 1100, b"", 0),
        (500, True, 1100, 200, b"x", 8192),
        (520, False, 200, 1100, b"", 0),
        (1500, True, 1100, 200, b"x", 8192),
        (1520, False, 200, 1100, b"", 0),
        (3000, False, 200, 1100, b"", 8192),
        (3000.1, True, 1100, 200, b"x" * 1000, 8192),
        (3021, False, 200, 2100, b"", 8192),
    ]
    steps = [(*step, 8192) for step in (*SHAKEN, *ASKED)]
    steps += [(ms, by, cf.ACK | cf.PSH, seq, ack, data, window) for ms, by, seq, ack, data, window in closed]
    for ms, by_client, flags, seq, ack, data, window in steps:
        ends = (cf.CLIENT, cf.SERVER) if by_client else (cf.SERVER, cf.CLIENT)
        own, other = (C, S) if by_client else (S, C)
        packet = cf.tcp(*ends, flags, own + 1 + seq, other + 1 + ack if ack >= 0 else 0, data, window)
        packets.append(cf.Packet(BEGUN + round(ms * 1e6), cf.link(cf.ETHERNET, packet)))
    (found,) = look(tmp_path, packets).connections
    assert (repeats(found), found.client.unique_bytes) == ((0, 0), 2100)
    assert found.causes.recovery_s == 0
    assert found.causes.server_s == pytest.approx(2.94, abs=0.1), found.causes


# ---- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [False, True], ids=["at the end", "as the answer"])
def test_a_reset_acknowledges_nothing_it_may_not(first: bool, tmp_path: Path) -> None:
    before = SHAKEN[:1] if first else (*SHAKEN, *ASKED)
    found = talk(tmp_path, *before, (60, False, cf.RST | cf.ACK, 200, -1, b""))
    assert missing(found) == 0
    assert found.server.resets == 1
    assert found.confidence == ("medium" if first else "high")


def test_an_end_that_overtakes_the_last_data_lacks_nothing(tmp_path: Path) -> None:
    found = talk(
        tmp_path,
        *SHAKEN,
        *ASKED,
        (50, False, cf.FIN | cf.ACK, 500, 100, b""),
        (50.3, False, cf.ACK | cf.PSH, 200, 100, b"a" * 300),
        (50.4, True, cf.FIN | cf.ACK, 100, 501, b""),
        (71, False, cf.ACK, 501, 101, b""),
    )
    assert (missing(found), found.server.unique_bytes, found.captured) == (0, 500, "whole")


# ---- where it was captured -----------------------------------------------------------------------------------


def directed(folder: Path, packets: Sequence[tuple[int, bytes]], ways: Sequence[int]) -> Trace:
    """Each packet passes once on each interface, in these directions: 1 in, 2 out."""
    out = cf.section() + b"".join(cf.interface(cf.RAW, tsresol=9) for _ in ways)
    for ns, packet in packets:
        for place, way in enumerate(ways):
            marked = cf.option(2, struct.pack("<I", way)) + cf.option(0, b"")
            out += cf.enhanced(cf.Packet(ns, packet), ns + 500 * place, place, options=marked)
    path = folder / "directed.pcapng"
    path.write_bytes(out)
    return analyse_file(path)


@pytest.mark.parametrize("most", [9, 10])
def test_the_ends_of_a_loopback_are_equally_near(most: int, tmp_path: Path) -> None:
    trace = directed(tmp_path, cf.conversation()[:most], (2, 1))
    (found,) = trace.connections
    assert found.capture_point == "unknown"
    assert not {limit.kind for limit in trace.limits} & {"near_client", "near_server"}


@pytest.mark.parametrize("most", [9, 10])
def test_a_machine_that_forwards_is_neither_end(most: int, tmp_path: Path) -> None:
    """By the handshake, the server is nearer."""
    (found,) = directed(tmp_path, cf.conversation()[:most], (1, 2)).connections
    assert found.capture_point == "server"
