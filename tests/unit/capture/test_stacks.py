"""The habits of other systems: what Linux does is no evidence where the packets are not Linux's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection
from guestmark.capture.verdict import find_doubt, find_main_cause, list_cause_shares
from tests.framework import captures as cf
from tests.framework.tcp_model import MSS, SYN_OPTIONS, Model, Numbers, conversations

ENDS = pytest.mark.parametrize("at_client", [True, False], ids=["client", "server"])
NUMBERS = pytest.mark.parametrize("numbers", Numbers)
OTHERS = pytest.mark.parametrize("others", [0.5, 5, 50, 400])


def connection(model: Model, at_client: bool, folder: Path) -> Connection:
    """The model's connection in a capture at one end."""
    path = folder / "model.pcap"
    path.write_bytes(model.seen_at(at_client))
    return analyse_file(path).connections[-1 if model.beside else 0]


def typed(model: Model, pauses_ms: list[float]) -> Model:
    """Somebody types: each of their keys comes back as an echo."""
    now, seq = model.shake_hands(), 1
    for pause in pauses_ms:
        now += pause
        model.packet(now, True, cf.ACK | cf.PSH, seq, seq, 1)
        model.packet(now + model.way_ms, False, cf.ACK | cf.PSH, seq, seq + 1, 1)
        seq += 1
        now += 2 * model.way_ms
        model.packet(now + 40, True, cf.ACK, seq, seq)
    return model


@ENDS
@OTHERS
@NUMBERS
def test_whoever_types_loses_nothing(
    numbers: Numbers, others: float, at_client: bool, tmp_path: Path
) -> None:
    pauses = [120.0 + 777 * at % 700 for at in range(60)]
    found = connection(typed(Model(8, numbers, others), pauses), at_client, tmp_path)
    assert found.causes.recovery_s == 0
    shares = {part.cause: part.share for part in list_cause_shares(found.causes)}
    assert shares["client"] > 0.5, shares
    assert shares["client"] + shares["unknown"] > 0.9, shares


@ENDS
@OTHERS
@NUMBERS
@pytest.mark.parametrize("delay_ms", [40, 100, 200], ids="acknowledged after {} ms".format)
def test_a_server_that_thinks_loses_nothing(
    numbers: Numbers, others: float, delay_ms: float, at_client: bool, tmp_path: Path
) -> None:
    model = Model(8, numbers, others)
    now, seq, reply = model.shake_hands(), 1, 1
    for turn in range(40):
        think = 300 + 37 * turn % 200
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        seq += 100
        model.packet(now + 8 + delay_ms, False, cf.ACK, reply, seq)
        model.packet(now + 8 + think, False, cf.ACK | cf.PSH, reply, seq, MSS)
        reply += MSS
        now += 16 + think
        model.packet(now, True, cf.ACK, seq, reply)
        now += 1
    found = connection(model, at_client, tmp_path)
    assert found.causes.recovery_s == 0
    main = find_main_cause(found.causes)
    assert main is not None
    assert main.cause == "server", found.causes


@pytest.mark.parametrize("beside", [True, False], ids=["shown", "not shown"])
def test_numbers_tell_of_a_loss_only_of_a_host_that_counts_each_connection(
    beside: bool, tmp_path: Path
) -> None:
    """The answers that were lost passed the server; at the client nothing but their numbers tells of them."""
    model = conversations(60, 10, frozenset(range(10, 60, 5)), beside=beside)
    far = connection(model, False, tmp_path)
    assert far.causes.recovery_s == pytest.approx(2.5, rel=0.1)
    near = connection(model, True, tmp_path)
    if beside:
        assert near.causes.recovery_s == pytest.approx(2.5, rel=0.15)
    else:
        assert near.causes.recovery_s == 0
        assert near.causes.unknown_s == pytest.approx(2.5, rel=0.15)
    assert near.confidence != "high"


def repeating(every: list[float], stamps: bool, *, answered: bool, syn: bool) -> Model:
    """A client that gets no answer sends the same again, each time later."""
    model = Model(10, Numbers.CONNECTION, stamps=stamps)
    now, seq = 0.0, 0
    if syn:
        flags, options, payload = cf.SYN, SYN_OPTIONS, 0
    else:
        now, seq, flags, options, payload = model.shake_hands(), 1, cf.ACK | cf.PSH, b"", 300
    for pause in [0.0, *every]:
        now += pause
        model.packet(now, True, flags, seq, 1 if seq else 0, payload, options=options, lost=True)
    if answered:
        model.packet(now + 50, False, cf.RST | cf.ACK, 1, seq + payload + (1 if syn else 0))
    return model


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("syn", [True, False])
@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize(
    "every",
    [
        [1000, 2000, 4000, 8000, 16000],
        [200, 400, 800, 1600, 3200, 6400],
        [3000, 6000],
        [500, 500, 500, 500, 500],
        [5, 5, 5, 5, 5, 5],
    ],
    ids=str,
)
def test_back_off_is_no_second_capture(
    every: list[float], stamps: bool, syn: bool, answered: bool, tmp_path: Path
) -> None:
    found = connection(repeating(every, stamps, answered=answered, syn=syn), True, tmp_path)
    assert "merged" not in found.marks
    assert found.client.retransmissions == len(every)


def test_one_merged_connection_does_not_refuse_all_others(tmp_path: Path) -> None:
    packets = [packet for at in range(40) for packet in cf.conversation((cf.CLIENT[0], 2000 + at), isn=99)]
    begun = packets[0][0]
    model = Model(20, Numbers.CONNECTION)
    now = model.shake_hands()
    for turn in range(6):
        model.packet(now, True, cf.ACK | cf.PSH, 1 + turn, 1 + turn, 1)
        model.packet(now + 21, False, cf.ACK | cf.PSH, 1 + turn, 2 + turn, 1)
        now += 42
    path = tmp_path / "ends.pcap"
    for at_client in (True, False):
        path.write_bytes(model.seen_at(at_client))
        packets += [(packet.ns - 10**18 + begun, packet.data[14:]) for packet in cf.packets_of(path)]
    long = cf.conversation((cf.CLIENT[0], 3000))
    packets += [(ns + at * 3 * 10**8, data) for at, (ns, data) in enumerate(long)]
    path.write_bytes(cf.pcap(cf.frames(sorted(packets)), nanos=True))
    trace = analyse_file(path)
    assert trace.counters["merged"] == 1
    found = find_doubt(trace)
    assert found is not None
    assert not found.refused
    assert "merged" in found.reason


def held_up(way_ms: float, jitter_ms: float, delay_ms: float, seed: int) -> Model:
    """Requests in two parts: the second is held up until the first is acknowledged, which the server delays."""
    chance = random.Random(seed)
    model = Model(way_ms, Numbers.RANDOM)

    def late() -> float:
        return chance.uniform(0, jitter_ms)

    now, seq, reply = model.shake_hands(), 1, 1
    for _ in range(30):
        ways = [late() for _ in range(4)]
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 8, late_ms=ways[0])
        now += way_ms + ways[0] + delay_ms
        model.packet(now, False, cf.ACK, reply, seq + 8, late_ms=ways[1])
        now += way_ms + ways[1]
        model.packet(now, True, cf.ACK | cf.PSH, seq + 8, reply, 3, late_ms=ways[2])
        now += way_ms + ways[2] + 0.1
        model.packet(now, False, cf.ACK | cf.PSH, reply, seq + 11, 10, late_ms=ways[3])
        now += way_ms + ways[3] + 0.1
        seq, reply = seq + 11, reply + 10
    return model


@ENDS
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("delay_ms", [40, 100, 200])
@pytest.mark.parametrize(("way_ms", "jitter_ms"), [(0.1, 0), (5, 0), (5, 3), (5, 12), (2, 12), (20, 15)])
def test_nagle_on_a_path_that_varies_accuses_nobody(  # noqa: PLR0917 - what paths and systems differ in
    way_ms: float, jitter_ms: float, delay_ms: float, seed: int, at_client: bool, tmp_path: Path
) -> None:
    found = connection(held_up(way_ms, jitter_ms, delay_ms, seed), at_client, tmp_path)
    shares = {part.cause: part.share for part in list_cause_shares(found.causes)}
    main = find_main_cause(found.causes)
    assert main is not None
    # 40 ms are little beside two round trips that take as long.
    assert main.cause == "nagle" or (shares["nagle"] > 0.3 and delay_ms < 2 * way_ms + jitter_ms), shares
    assert shares["client"] + shares["server"] < 0.3, shares


@ENDS
@pytest.mark.parametrize("pause_ms", [60, 75, 90])
def test_a_client_that_writes_its_request_slowly_is_no_nagle(
    pause_ms: float, at_client: bool, tmp_path: Path
) -> None:
    model = Model(5, Numbers.CONNECTION)
    now, seq, reply = model.shake_hands(), 1, 1
    for _ in range(20):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 80)
        model.packet(now + 45, False, cf.ACK, reply, seq + 80)
        now += pause_ms
        model.packet(now, True, cf.ACK | cf.PSH, seq + 80, reply, 80)
        now += 5.1
        model.packet(now, False, cf.ACK | cf.PSH, reply, seq + 160, 100)
        now += 5.1
        seq, reply = seq + 160, reply + 100
    found = connection(model, at_client, tmp_path)
    main = find_main_cause(found.causes)
    assert main is not None
    assert main.cause == "client", found.causes


# How systems number and stamp their packets, and after how many milliseconds they acknowledge what they do not answer.
HABITS = {
    "Linux": (Numbers.CONNECTION, 0.0, True, 40),
    "Windows": (Numbers.HOST, 20.0, False, 200),
    "old Windows": (Numbers.SWAPPED, 20.0, False, 200),
    "BSD": (Numbers.RANDOM, 0.0, True, 100),
    "lwIP": (Numbers.HOST, 2.0, False, 250),
    "a device that may not fragment": (Numbers.ZERO, 0.0, False, 100),
}
SCENES = {"server": (180.0, 1.0), "client": (1.0, 180.0), "latency": (0.5, 0.5)}


def spoken(habit: str, server_ms: float, client_ms: float, segments: int = 3) -> Model:
    """Requests and answers of some segments, by programs that take these times."""
    numbers, others, stamps, delay_ms = HABITS[habit]
    model = Model(15, numbers, others, stamps=stamps)
    now, seq, reply = model.shake_hands(), 1, 1
    for _ in range(25):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        seq += 100
        now += model.way_ms
        if server_ms > delay_ms:
            model.packet(now + delay_ms, False, cf.ACK, reply, seq)
        now += server_ms
        for number in range(segments):
            last = cf.PSH if number == segments - 1 else 0
            model.packet(now + number / 10, False, cf.ACK | last, reply, seq, MSS)
            reply += MSS
        now += model.way_ms + segments / 10
        model.packet(now + 0.01, True, cf.ACK, seq, reply)
        now += max(client_ms, 0.02)
    return model


def in_vxlan(packet: cf.Packet) -> cf.Packet:
    """As a virtual network carries it."""
    inner = b"\x08\0\0\0\0\0\x07\0" + packet.data
    outer = cf.udp(("192.0.2.1", 40_000), ("192.0.2.2", 4789), inner)
    return cf.Packet(packet.ns, cf.link(cf.ETHERNET, outer))


def tagged(packet: cf.Packet) -> cf.Packet:
    """In a VLAN within another."""
    return cf.Packet(packet.ns, cf.link(cf.ETHERNET, packet.data[14:], [0x88A8, 0x8100]))


def as_it_is(packet: cf.Packet) -> cf.Packet:
    return packet


@pytest.mark.parametrize("carried", [as_it_is, tagged, in_vxlan])
@pytest.mark.parametrize("doubled", [False, True], ids=["once", "every frame twice"])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0], ids=["client", "middle", "server"])
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("habit", HABITS)
def test_a_cause_is_the_same_whatever_systems_do(  # noqa: PLR0917 - what captures differ in
    habit: str,
    scene: str,
    at: float,
    doubled: bool,
    carried: Callable[[cf.Packet], cf.Packet],
    tmp_path: Path,
) -> None:
    model = spoken(habit, *SCENES[scene])
    packets = [carried(packet) for packet in model.passing(at)]
    if doubled:
        packets = [cf.Packet(one.ns + late, one.data) for one in packets for late in (0, 3_000)]
    path = tmp_path / "capture.pcap"
    path.write_bytes(cf.pcap(sorted(packets, key=lambda packet: packet.ns), nanos=True))
    (found,) = analyse_file(path).connections
    main = find_main_cause(found.causes)
    assert main is not None
    assert main.cause == scene, found.causes
    assert main.share > 0.7
    assert found.causes.recovery_s == 0
    assert found.confidence != "low"


@pytest.mark.parametrize("answered", [True, False], ids=["answers lost", "no answer"])
def test_a_repeated_syn_is_the_servers_only_where_it_did_not_answer(answered: bool, tmp_path: Path) -> None:
    """At the server it is seen whether the first SYN was answered."""
    model = Model(15, Numbers.CONNECTION)
    model.packet(0, True, cf.SYN, 0, 0, options=SYN_OPTIONS)
    if answered:
        model.packet(15.01, False, cf.SYN | cf.ACK, 0, 1, options=SYN_OPTIONS, lost=True)
    now = 1000.0
    model.packet(now, True, cf.SYN, 0, 0, options=SYN_OPTIONS)
    model.packet(now + 15.01, False, cf.SYN | cf.ACK, 0, 1, options=SYN_OPTIONS)
    model.packet(now + 30.02, True, cf.ACK | cf.PSH, 1, 1, 100)
    model.packet(now + 45.1, False, cf.ACK | cf.PSH, 1, 101, 100)
    model.packet(now + 60.2, True, cf.ACK, 101, 101)
    found = connection(model, False, tmp_path).causes
    longest = found.recovery_s if answered else found.server_s
    assert longest == pytest.approx(1.0, abs=0.05), found


@ENDS
@pytest.mark.parametrize("by_client", [True, False], ids=["request", "answer"])
@pytest.mark.parametrize("told", [True, False], ids=["HTTP", "unknown protocol"])
def test_whoever_pauses_in_a_message_is_named_or_idleness_is_doubted(
    told: bool, by_client: bool, at_client: bool, tmp_path: Path
) -> None:
    head = b"POST / HTTP/1.1" if by_client else b"HTTP/1.1 200 OK"
    head += b"\r\nContent-Length: 400\r\n\r\n"
    model = Model(10, Numbers.CONNECTION)
    now = model.shake_hands()
    first = (head if told else b"z" * len(head)) + b"x" * 100
    seq, reply = 1, 1
    if not by_client:
        model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 50)
        seq, now = 51, now + 10.1
    own, other = (seq, reply) if by_client else (reply, seq)
    model.packet(now, by_client, cf.ACK | cf.PSH, own, other, text=first)
    model.packet(now + 10.1, not by_client, cf.ACK, other, own + len(first))
    now += 2500
    model.packet(now, by_client, cf.ACK | cf.PSH, own + len(first), other, 300)
    now += 10.2
    model.packet(now, not by_client, cf.ACK | cf.PSH, other, own + len(first) + 300, 80)
    found = connection(model, at_client, tmp_path)
    main = find_main_cause(found.causes)
    assert main is not None
    if told:
        assert main.cause == ("client" if by_client else "server"), found.causes
    else:
        assert main.cause == "idle"
        assert found.confidence == "medium"
