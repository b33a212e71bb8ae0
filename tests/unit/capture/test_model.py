"""Causes of exact captures: each interval has a known answer, the same at both ends."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from guestmark import capture
from guestmark.capture.binary import Selection, analyse_capture, analyse_file
from guestmark.capture.model import Causes
from guestmark.capture.verdict import CAUSE_NAMES
from guestmark.core.errors import GuestmarkError
from tests.framework import captures as cf
from tests.framework.tcp_model import (
    MSS,
    SYN_OPTIONS,
    Model,
    Numbers,
    conversations,
    download,
    repaired,
    sack,
)

ENDS = pytest.mark.parametrize("at_client", [True, False], ids=["client", "server"])


def causes(model: Model, at_client: bool, folder: Path) -> dict[str, float]:
    """Milliseconds by cause."""
    path = folder / "model.pcap"
    path.write_bytes(model.seen_at(at_client))
    connection = analyse_file(path).connections[-1 if model.beside else 0]
    found: Causes = connection.causes
    return {name: 1e3 * (getattr(found, f"{name}_s", None) or 0.0) for name in CAUSE_NAMES}


@ENDS
def test_a_stale_selective_acknowledgement_is_no_loss(at_client: bool, tmp_path: Path) -> None:
    model = Model(10)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    now += 10
    for number in range(3):
        model.packet(now + number / 10, False, cf.ACK, 1 + number * MSS, 101, MSS)
    now += 10.5
    model.packet(now, True, cf.ACK, 101, 1 + 3 * MSS)
    # Overtaken: it was sent before the one that acknowledges everything.
    model.packet(now + 0.1, True, cf.ACK, 101, 1 + MSS, options=sack((1 + 2 * MSS, 1 + 3 * MSS)))
    model.packet(now + 900, False, cf.ACK | cf.PSH, 1 + 3 * MSS, 101, 100)
    found = causes(model, at_client, tmp_path)
    assert found["recovery"] == 0
    assert found["server"] == pytest.approx(890, abs=25), found


@ENDS
def test_nagle_with_delayed_acknowledgements_accuses_nobody(at_client: bool, tmp_path: Path) -> None:
    model = Model(5)
    now = model.shake_hands()
    seq, reply = 1, 1
    for _ in range(10):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 200)
        model.packet(now + 45, False, cf.ACK, reply, seq + 200)
        model.packet(now + 50, True, cf.ACK | cf.PSH, seq + 200, reply, 200)
        model.packet(now + 55, False, cf.ACK | cf.PSH, reply, seq + 400, 100)
        seq, reply, now = seq + 400, reply + 100, now + 60
    found = causes(model, at_client, tmp_path)
    assert found["nagle"] == pytest.approx(500, abs=10), found
    assert found["client"] + found["server"] < 10, found


@ENDS
@pytest.mark.parametrize("varies_ms", [0.0, 6.0])
def test_what_a_pausing_program_writes_is_waited_for_there(
    varies_ms: float, at_client: bool, tmp_path: Path
) -> None:
    """Seven segments each 45 ms, spread out by their system, on a path where packets overtake each other or do not."""
    chance = random.Random(3)
    model = Model(10)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    arriving: list[tuple[float, int]] = []
    for number in range(40 * 7):
        left, late = now + 10 + 45 * (number // 7) + 1.2 * (number % 7), chance.uniform(0, varies_ms)
        flags = cf.ACK | cf.PSH if number % 7 == 6 else cf.ACK
        model.packet(left, False, flags, 1 + number * MSS, 101, MSS, late_ms=late)
        arriving.append((left + 10 + late, number))
    there: set[int] = set()
    whole = 0
    for arrived, number in sorted(arriving):
        there.add(number)
        while whole in there:
            whole += 1
        beyond = sack((1 + number * MSS, 1 + (number + 1) * MSS)) if number > whole else b""
        late = chance.uniform(0, varies_ms)
        model.packet(arrived + 0.02, True, cf.ACK, 101, 1 + whole * MSS, options=beyond, late_ms=late)
    found = causes(model, at_client, tmp_path)
    assert found["server"] > 0.9 * sum(found.values()), found


@ENDS
def test_a_reader_that_was_slow_once_is_not_accused_for_ever(at_client: bool, tmp_path: Path) -> None:
    """Its window is shut for 200 ms in the first answer; later answers arrive spread out over 9 ms each."""
    model = Model(10, largest_window=4 * MSS)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    for number in range(4):
        model.packet(now + 10 + number / 10, False, cf.ACK, 1 + number * MSS, 101, MSS)
        model.packet(
            now + 20.1 + number / 10, True, cf.ACK, 101, 1 + (number + 1) * MSS, window=(3 - number) * MSS
        )
    model.largest_window = 60_000
    model.packet(now + 220, True, cf.ACK, 101, 1 + 4 * MSS)
    model.packet(now + 230.1, False, cf.ACK | cf.PSH, 1 + 4 * MSS, 101, MSS)
    now, seq, reply = now + 240.2, 101, 1 + 5 * MSS
    for _ in range(20):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        seq += 100
        for number in range(10):
            flags = cf.ACK | cf.PSH if number == 9 else cf.ACK
            model.packet(now + 10 + number, False, flags, reply + number * MSS, seq, MSS)
        reply += 10 * MSS
        now += 29.1
    found = causes(model, at_client, tmp_path)
    assert found["client"] == pytest.approx(200, abs=25), found


@ENDS
def test_a_path_that_varies_makes_nobody_slow(at_client: bool, tmp_path: Path) -> None:
    chance = random.Random(5)
    model = Model(10)
    now, seq, reply = model.shake_hands(), 1, 1
    for _ in range(40):
        on_the_way = [chance.uniform(0, 6) for _ in range(3)]
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100, late_ms=on_the_way[0])
        seq += 100
        answered = now + 10 + on_the_way[0]
        model.packet(answered, False, cf.ACK, reply, seq, MSS, late_ms=on_the_way[1])
        model.packet(answered, False, cf.ACK | cf.PSH, reply + MSS, seq, MSS, late_ms=on_the_way[2])
        first, second = on_the_way[1:]
        if second < first:
            hole = sack((reply + MSS, reply + 2 * MSS))
            model.packet(answered + 10 + second, True, cf.ACK, seq, reply, options=hole)
        reply += 2 * MSS
        now = answered + 10 + max(first, second)
        model.packet(now, True, cf.ACK, seq, reply)
        now += 0.05
    found = causes(model, at_client, tmp_path)
    assert found["client"] + found["server"] < 0.03 * now, found
    assert found["recovery"] == 0, found
    assert found["latency"] > 0.75 * now, found


@ENDS
def test_a_server_that_thinks_on_a_path_that_varies_is_the_server(at_client: bool, tmp_path: Path) -> None:
    model = Model(10)
    now, seq, reply = model.shake_hands(), 1, 1
    for turn in range(10):
        late = 4.0 if turn % 3 == 0 else 0.0
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        seq += 100
        answered = now + 10 + 80
        model.packet(answered, False, cf.ACK, reply, seq, MSS, late_ms=late)
        model.packet(answered, False, cf.ACK | cf.PSH, reply + MSS, seq, MSS)
        if late:
            hole = sack((reply + MSS, reply + 2 * MSS))
            model.packet(answered + 10, True, cf.ACK, seq, reply, options=hole)
        reply += 2 * MSS
        now = answered + 10 + late
        model.packet(now, True, cf.ACK, seq, reply)
        now += 0.05
    found = causes(model, at_client, tmp_path)
    assert found["server"] == pytest.approx(800, abs=10), found


@ENDS
def test_a_copy_that_the_path_makes_is_nobodys_act(at_client: bool, tmp_path: Path) -> None:
    model = Model(20, Numbers.CONNECTION)
    now, reply = model.shake_hands(), 1
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    for number in range(10):
        last = number == 9
        flags = cf.ACK | (cf.PSH if last else 0)
        model.packet(now + 20 + number / 50, False, flags, reply, 101, MSS, copied_ms=0.3 if last else 0)
        reply += MSS
    now += 40 + 9 / 50
    model.packet(now + 0.01, True, cf.ACK, 101, reply)
    model.packet(now + 0.05, True, cf.ACK | cf.FIN, 101, reply)
    model.packet(now + 20.1, False, cf.ACK | cf.FIN, reply, 102)
    model.packet(now + 40.1, True, cf.ACK, 102, reply + 1)
    found = causes(model, at_client, tmp_path)
    assert found["server"] + found["client"] < 1, found


@ENDS
def test_acknowledgements_of_one_answer_say_nothing_about_the_next(at_client: bool, tmp_path: Path) -> None:
    model = Model(10)
    now, seq, reply = model.shake_hands(), 1, 1
    for _ in range(10):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 64)
        seq += 64
        # A pace that spreads fourteen segments over less than a round trip.
        for number in range(14):
            at = now + 10 + number // 2 * 1.2
            model.packet(at, False, cf.ACK | (cf.PSH if number == 13 else 0), reply, seq, MSS)
            reply += MSS
            if number % 2:
                model.packet(at + 10, True, cf.ACK, seq, reply)
        now += 10 + 6 * 1.2 + 10 + 150
    found = causes(model, at_client, tmp_path)
    assert found["bandwidth"] < 5, found
    assert found["client"] == pytest.approx(9 * 150, rel=0.03), found


@ENDS
def test_a_pause_that_a_queue_outlasts_is_the_paths(at_client: bool, tmp_path: Path) -> None:
    found = causes(download(200, 20, 12, pause=(100, 90)), at_client, tmp_path)
    assert found["server"] + found["client"] < 15, found
    assert found["bandwidth"] > 0.93 * sum(found.values()), found


@ENDS
def test_a_pause_that_empties_the_queue_is_the_servers(at_client: bool, tmp_path: Path) -> None:
    found = causes(download(200, 20, 12, pause=(100, 700)), at_client, tmp_path)
    # The first 200 ms of it held nothing up.
    assert found["server"] == pytest.approx(500, abs=30), found
    assert found["client"] < 5, found


@ENDS
@pytest.mark.parametrize("pause", [60, 200])
def test_a_server_that_thinks_on_a_wide_path_is_no_queue(
    at_client: bool, pause: float, tmp_path: Path
) -> None:
    model = download(400, 8, 0.1, pause=(200, pause))
    found = causes(model, at_client, tmp_path)
    assert found["server"] == pytest.approx(pause, abs=25), found
    assert found["bandwidth"] < 10, found


@ENDS
def test_a_small_send_buffer_is_no_narrow_path(at_client: bool, tmp_path: Path) -> None:
    found = causes(download(600, 8, 0.1, paced_ms=2.5), at_client, tmp_path)
    assert found["server_send_buffer"] > 0.8 * sum(found.values()), found
    assert found["bandwidth"] + found["server"] < 0.05 * sum(found.values()), found


def test_a_lost_first_request_is_not_the_clients_thinking(tmp_path: Path) -> None:
    model = Model(20, Numbers.CONNECTION)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100, lost=True)
    model.packet(now + 240, True, cf.ACK | cf.PSH, 1, 1, 100)
    model.packet(now + 260, False, cf.ACK | cf.PSH, 1, 101, 500)
    model.packet(now + 280, True, cf.ACK, 101, 501)
    near, far = (causes(model, at_client, tmp_path) for at_client in (True, False))
    assert near["recovery"] == pytest.approx(240, abs=5), near
    assert far["client"] < 5, far
    assert far["unknown"] == pytest.approx(240, abs=25), far


def test_a_lost_handshake_acknowledgement_is_not_the_clients_thinking(tmp_path: Path) -> None:
    model = Model(40)
    model.packet(0, True, cf.SYN, 0, 0, options=SYN_OPTIONS)
    model.packet(40, False, cf.SYN | cf.ACK, 0, 1, options=SYN_OPTIONS)
    model.packet(80, True, cf.ACK, 1, 1, lost=True)
    model.packet(80, True, cf.ACK | cf.PSH, 1, 1, 100)
    model.packet(120, False, cf.ACK | cf.PSH, 1, 101, 500)
    model.packet(160, True, cf.ACK, 101, 501)
    for at_client in (True, False):
        found = causes(model, at_client, tmp_path)
        assert found["client"] + found["server"] < 2, found


@ENDS
def test_a_loss_costs_what_its_repair_took(at_client: bool, tmp_path: Path) -> None:
    found = causes(repaired(60, frozenset(range(5, 60, 7))), at_client, tmp_path)
    assert found["recovery"] == pytest.approx(8 * 40, rel=0.1), found
    assert found["client"] + found["server"] < 0.02 * sum(found.values()), found


@pytest.mark.parametrize(
    "model",
    [
        download(200, 20, 12),
        download(200, 20, 12, pause=(100, 90)),
        download(200, 20, 12, pause=(100, 700)),
        download(400, 8, 0.1, pause=(200, 60)),
        download(600, 8, 0.1, paced_ms=2.5),
        download(600, 4, 0.1),
        download(1200, 40, 1),
        repaired(60, frozenset(range(5, 60, 7))),
        conversations(100, 10, frozenset({5, 20, 77}), beside=True),
    ],
    ids=[
        "queue",
        "short pause",
        "long pause",
        "thinking",
        "send buffer",
        "far",
        "shallow queue",
        "fast repair",
        "timeouts",
    ],
)
def test_both_ends_tell_the_same_story(model: Model, tmp_path: Path) -> None:
    near, far = (causes(model, at_client, tmp_path) for at_client in (True, False))
    whole = sum(near.values())
    apart = {cause: abs(time - far[cause]) / whole for cause, time in near.items()}
    assert max(apart.values()) < 0.05, (near, far)


@ENDS
def test_an_answer_whose_first_packet_was_overtaken_lost_nothing(at_client: bool, tmp_path: Path) -> None:
    model = Model(10, Numbers.CONNECTION)
    now, seq, reply = model.shake_hands(), 1, 1
    for turn in range(12):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        seq += 100
        late = 4.0 if turn == 8 else 0.0
        model.packet(now + 160, False, cf.ACK, reply, seq, MSS, late_ms=late)
        model.packet(now + 160, False, cf.ACK | cf.PSH, reply + MSS, seq, MSS)
        reply += 2 * MSS
        now += 170 + late
        model.packet(now, True, cf.ACK, seq, reply)
        now += 0.05
    found = causes(model, at_client, tmp_path)
    assert found["recovery"] == 0, found
    assert found["server"] == pytest.approx(12 * 150, rel=0.02), found


def test_every_cause_has_one_colour() -> None:
    style = (Path(capture.__file__).parent / "templates" / "style.css").read_text()
    assert sorted(re.findall(r"\.(\w+){--cause:", style)) == sorted(CAUSE_NAMES)


def reading(wait_ms: float, low: int, high: int) -> Model:
    """A server sends whenever the client's window opens from `low` to `high`, `wait_ms` after data."""
    model = Model(10)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100)
    now, sent = now + 10, 1
    for number in range(20):
        size = 40 if number == 0 else high // MSS
        for at in range(size):
            model.packet(now + at / 100, False, cf.ACK | (cf.PSH if at == size - 1 else 0), sent, 101, MSS)
            sent += MSS
        arrived = now + 10.5
        window = 60_000 - 40 * MSS if number == 0 else low
        if wait_ms:
            model.packet(arrived, True, cf.ACK, 101, sent, window=window)
        model.packet(arrived + wait_ms, True, cf.ACK, 101, sent, window=high)
        now = arrived + wait_ms + 10
    return model


@ENDS
def test_a_slow_reader_is_its_program(at_client: bool, tmp_path: Path) -> None:
    found = causes(reading(100, 0, 8 * MSS), at_client, tmp_path)
    assert found["client"] > 0.85 * sum(found.values()), found
    assert found["server"] + found["recovery"] < 20, found


@ENDS
def test_a_small_receive_buffer_is_no_slow_reader(at_client: bool, tmp_path: Path) -> None:
    model = Model(20, largest_window=10 * MSS)
    now = model.shake_hands()
    model.packet(now, True, cf.ACK | cf.PSH, 1, 1, 100, window=10 * MSS)
    now, sent = now + 20, 1
    for _ in range(20):
        for at in range(10):
            model.packet(now + at / 100, False, cf.ACK | (cf.PSH if at == 9 else 0), sent, 101, MSS)
            sent += MSS
        model.packet(now + 20.2, True, cf.ACK, 101, sent, window=10 * MSS)
        now += 40.2
    found = causes(model, at_client, tmp_path)
    assert found["client_receive_buffer"] > 0.8 * sum(found.values()), found
    assert found["client"] + found["server"] < 20, found


@ENDS
@pytest.mark.parametrize("kept", [(3, 5), (2, 3)])
def test_what_the_capture_lost_is_unknown_and_no_recovery(
    at_client: bool, kept: tuple[int, int], tmp_path: Path
) -> None:
    model = Model(10)
    now = model.shake_hands()
    seq, reply = 1, 1
    for _ in range(30):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        for part in range(3):
            model.packet(now + 60 + part / 10, False, cf.ACK, reply + part * MSS, seq + 100, MSS)
        model.packet(now + 70.5, True, cf.ACK, seq + 100, reply + 3 * MSS)
        seq, reply, now = seq + 100, reply + 3 * MSS, now + 71
    whole = causes(model, at_client, tmp_path)
    assert whole["server"] > 0.6 * sum(whole.values()), whole
    model.sent = [packet for at, packet in enumerate(model.sent) if at % kept[1] != kept[0] % kept[1]]
    found = causes(model, at_client, tmp_path)
    assert found["recovery"] == 0, found
    assert found["unknown"] > 0, found


@pytest.mark.parametrize("way_ms", [1, 3, 40, 600])
def test_merged_captures_of_two_points_get_no_verdict(way_ms: float, tmp_path: Path) -> None:
    from guestmark.capture.verdict import find_doubt

    model = Model(way_ms, Numbers.CONNECTION)
    now = model.shake_hands()
    seq, reply = 1, 1
    for _ in range(10):
        model.packet(now, True, cf.ACK | cf.PSH, seq, reply, 100)
        model.packet(now + way_ms + 50, False, cf.ACK | cf.PSH, reply, seq + 100, MSS)
        model.packet(now + 2 * way_ms + 50, True, cf.ACK, seq + 100, reply + MSS)
        seq, reply, now = seq + 100, reply + MSS, now + 2 * way_ms + 60
    both = []
    for at_client in (True, False):
        path = tmp_path / f"{at_client}.pcap"
        path.write_bytes(model.seen_at(at_client))
        assert find_doubt(analyse_file(path)) is None
        both += list(cf.packets_of(path))
    merged = tmp_path / "merged.pcap"
    merged.write_bytes(cf.pcap(sorted(both, key=lambda packet: packet.ns), nanos=True))
    trace = analyse_file(merged)
    found = find_doubt(trace)
    assert found is not None
    assert found.refused
    assert "merged" in found.reason
    assert trace.connections[0].causes.recovery_s == 0
    files = (str(tmp_path / "True.pcap"), str(tmp_path / "False.pcap"))
    one_after_the_other = find_doubt(analyse_capture(Selection(files, merge=True))[0].files[0])
    assert one_after_the_other is not None
    assert one_after_the_other.reason == "the files overlap in time"


def test_a_list_without_its_column_info_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fields.csv"
    path.write_text(
        "frame.time_epoch,ip.src,tcp.srcport,ip.dst,tcp.dstport,tcp.len\n1.0,10.0.0.1,80,10.0.0.2,99,5\n"
    )
    with pytest.raises(GuestmarkError, match="no column Info"):
        analyse_file(path)
