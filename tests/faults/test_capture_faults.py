"""Damaged, lying and hostile captures: named with offset and reason, everything before still said, memory bounded."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from guestmark.capture.binary import find_capture_binary
from tests.framework import captures as cf

FRAMES = cf.frames(cf.conversation())
GOOD = cf.pcap(FRAMES)
LIMIT_KB = 200_000


def look(*arguments: str, stdin: bytes | None = None) -> tuple[int, dict[str, Any], str]:
    """Exit status, document and what was told on standard error."""
    done = subprocess.run(
        [str(find_capture_binary()), *arguments], input=stdin, capture_output=True, timeout=60, check=False
    )
    return done.returncode, json.loads(done.stdout), done.stderr.decode()


def packets(trace: dict[str, Any]) -> int:
    return sum(
        connection["client"]["packets"] + connection["server"]["packets"]
        for connection in trace["connections"]
    )


def test_a_file_cut_anywhere_keeps_what_is_before(tmp_path: Path) -> None:
    """At every byte of the last three packets and of the header; whole packets are all counted."""
    path = tmp_path / "cut.pcap"
    ends = [24]
    for frame in FRAMES:
        ends.append(ends[-1] + 16 + len(frame.data))
    for size in [*range(24), *range(ends[-4], ends[-1])]:
        path.write_bytes(GOOD[:size])
        status, document, told = look(str(path))
        (trace,) = document["files"]
        assert packets(trace) == max(sum(end <= size for end in ends) - 1, 0)
        if size in ends:
            assert (status, trace["error"], told) == (0, None, "")
            continue
        assert status == 1
        assert told.startswith(
            f"guestmark: {path}: at byte {trace['error']['offset']}: {trace['error']['reason']}"
        )
        assert trace["error"]["offset"] == max((end for end in ends if end <= size), default=0)


def test_a_cut_pcapng(tmp_path: Path) -> None:
    blocks = [cf.section() + cf.interface(cf.ETHERNET, 9)]
    blocks += [cf.enhanced(packet, packet.ns) for packet in FRAMES]
    path = tmp_path / "cut.pcapng"
    path.write_bytes(b"".join(blocks)[:-3])
    status, document, told = look(str(path))
    assert status == 1
    assert packets(document["files"][0]) == len(FRAMES) - 1
    assert f"at byte {len(b''.join(blocks[:-1]))}: the last block is cut short" in told


def hurt(at: int, value: bytes) -> bytes:
    return GOOD[:at] + value + GOOD[at + len(value) :]


def ng(*blocks: bytes) -> bytes:
    return (
        cf.section() + cf.interface(cf.ETHERNET, 9) + cf.enhanced(FRAMES[0], FRAMES[0].ns) + b"".join(blocks)
    )


SECOND = 24 + 16 + len(FRAMES[0].data)


@pytest.mark.parametrize(
    ("data", "before", "reason"),
    [
        (b"", 0, "the file is empty"),
        (b"\0", 0, "neither pcap nor pcapng"),
        (b"#!/bin/sh\n" * 1000, 0, "neither pcap nor pcapng"),
        (hurt(SECOND + 8, b"\xff\xff\xff\xff"), 1, "a packet claims 4294967295 captured bytes"),
        (hurt(SECOND + 8, struct.pack("<I", 262_144)), 1, "the last packet is cut short"),
        (GOOD + GOOD, len(FRAMES), "another capture file begins here"),
        (
            ng(cf.block(6, struct.pack("<IIIII", 7, 0, 0, 0, 0))),
            1,
            "a packet refers to interface 7, but only 1 are described",
        ),
        (
            ng(cf.block(6, struct.pack("<IIIII", 0, 0, 0, 9999, 9999))),
            1,
            "a packet claims 9999 captured bytes",
        ),
        (ng(struct.pack("<II", 6, 0xFFFFFFF0) + bytes(64)), 1, "a block claims a length of 4294967280 bytes"),
        (ng(struct.pack("<II", 6, 13) + bytes(64)), 1, "a block claims a length of 13 bytes"),
        (ng(struct.pack("<II", 6, 32) + bytes(24)), 1, "a block's two lengths differ: 32 and 0"),
        (ng(cf.interface() * 70_000), 1, "more than 65536 interfaces"),
        (
            ng(struct.pack("<III", 0x0A0D0D0A, 28, 0) + bytes(64)),
            1,
            "a section header without a byte-order mark",
        ),
        (
            b'"No.","Time","Source","Destination","Info"\n"1","noon","a","b","c"\n',
            0,
            'line 2: "noon" is not a time',
        ),
        (
            b'"No.","Time","Source","Destination","Info"\n"1","0.0","a","b\n',
            0,
            "line 2: a quoted field does not end",
        ),
        (
            b'"No.","Time","Source","Destination","Info"\n' + b"x" * 100_000,
            0,
            "line 2 is longer than 65536 bytes",
        ),
    ],
)
def test_lies_are_named_with_offset_and_reason(tmp_path: Path, data: bytes, before: int, reason: str) -> None:
    path = tmp_path / "hurt"
    path.write_bytes(data)
    status, document, told = look(str(path))
    (trace,) = document["files"]
    assert status == 1
    assert reason in told
    assert "at byte" in told
    assert str(path) in told
    assert trace["counters"]["packets"] == before


def test_damaged_compression_keeps_what_is_before(tmp_path: Path) -> None:
    import gzip
    import random

    # Payloads that do not compress, so that much comes out before the cut.
    noise = random.Random(1).randbytes
    steps = [(at, cf.tcp(cf.CLIENT, cf.SERVER, cf.ACK, at * 1000, 1, noise(1000))) for at in range(500)]
    packed = gzip.compress(cf.pcap(cf.frames(steps)))
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: len(packed) // 2])
    status, document, told = look(str(path))
    (trace,) = document["files"]
    assert status == 1
    assert "cannot be read" in told
    assert trace["compression"] == "gzip"
    assert 200 < trace["counters"]["packets"] < 300


def test_other_files_are_still_read(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(GOOD)
    missing, folder = str(tmp_path / "missing"), str(tmp_path)
    status, document, told = look(missing, folder, str(good))
    assert status == 1
    assert [packets(trace) for trace in document["files"]] == [0, 0, len(FRAMES)]
    assert missing in told
    assert "is a directory" in told


@pytest.mark.parametrize(
    "arguments",
    [[], ["--nosuch"], ["--format=xml", "f"], ["--filter=a b", "f"], ["-", "-"], ["--top=x", "f"]],
)
def test_a_wrong_command_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [str(find_capture_binary()), *arguments], capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    path = tmp_path / "many"
    steps = [step for port in range(1024, 4000) for step in cf.conversation(("10.0.6.2", port))]
    path.write_bytes(cf.pcap(cf.frames(steps)))
    with subprocess.Popen(
        [str(find_capture_binary()), "--format=csv", str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(10) == 0


def test_sequence_numbers_wrap() -> None:
    steps = cf.conversation(isn=2**32 - 50)
    status, document, _ = look("-", stdin=cf.pcap(cf.frames(steps)))
    (connection,) = document["files"][0]["connections"]
    assert status == 0
    assert connection["marks"] == ["wrapped"]
    assert (connection["client"]["unique_bytes"], connection["server"]["unique_bytes"]) == (100, 2000)
    assert connection["client"]["retransmitted_bytes"] == connection["server"]["missing_bytes"] == 0


def test_more_than_four_gigabytes_in_one_connection() -> None:
    """A stream over two wraps, in steps of 60,000 bytes that are cut to headers; each tenth step is sent twice."""
    src, dst = ("10.0.0.1", 5000), ("10.0.0.2", 80)
    head = cf.frames([(0, cf.tcp(src, dst, cf.SYN, 77))])
    count, size = 170_000, 60_000
    template = bytearray(
        struct.pack("<IIII", 0, 0, 54, 54 + size) + cf.link(cf.ETHERNET, cf.tcp(src, dst, cf.ACK, 0))
    )
    template[16 + 16 : 16 + 18] = struct.pack(">H", 40 + size)
    out = bytearray(cf.pcap(head))
    for number in range(count):
        template[16 + 38 : 16 + 42] = struct.pack(">I", (78 + number * size) % 2**32)
        out += template * (2 if number % 10 == 0 else 1)
    _, document, _ = look("-", stdin=bytes(out))
    (connection,) = document["files"][0]["connections"]
    assert connection["client"]["unique_bytes"] == count * size > 2 * 2**32
    assert connection["client"]["retransmitted_bytes"] == count // 10 * size
    assert "wrapped" in connection["marks"]


def test_ports_used_again_are_told_apart() -> None:
    steps = cf.conversation() + cf.conversation(start=1_272_975_195_000_000_000, isn=70_000)
    _, document, _ = look("-", stdin=cf.pcap(cf.frames(steps)))
    first, second = document["files"][0]["connections"]
    assert (first["captured"], second["captured"]) == ("whole", "whole")
    assert (first["marks"], second["marks"]) == ([], ["port-reused"])


def test_what_limits_truth_is_said() -> None:
    """Offload, clock steps, fragments, cut headers, missing bytes, zero windows, resets, one-sided connections."""
    c, s = cf.CLIENT, cf.SERVER
    steps = cf.conversation()
    large = cf.tcp(s, c, cf.ACK, 2001, 1101, b"z" * 20_000)
    gap = cf.tcp(c, s, cf.ACK, 1101, 30_001, window=0)
    frames = cf.frames([*steps[:6], (steps[5][0] + 10_000, large), (steps[5][0] - 5_000_000, gap)])
    fragment = bytearray(steps[3][1])
    fragment[6:8] = b"\0\7"
    reset = cf.tcp(("10.0.0.7", 7), ("10.0.0.8", 8), cf.RST, 5)
    now = steps[-1][0]
    frames += cf.frames([(now, bytes(fragment)), (now, reset), (now, b"\x45" + bytes(10))])
    _, document, _ = look("-", stdin=cf.pcap(frames))
    trace = document["files"][0]
    assert {"offload", "clock_backwards", "fragments", "cut_headers", "missing_bytes", "one_sided"} <= {
        limit["kind"] for limit in trace["limits"]
    }
    first, second = trace["connections"]
    assert first["client"]["zero_windows"] == 1
    assert first["server"]["missing_bytes"] == 30_001 - 22_001
    assert first["server"]["oversized"] == 1
    assert second["client"]["resets"] + second["server"]["resets"] == 1
    assert trace["counters"]["clock_backwards_ns"] == 5_010_000


# A child's peak begins at its parent's size, so the parent is small; and it tells the peak of this one child only.
PEAK = """import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)"""


def peak_kb(feed: Callable[[IO[bytes]], None], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the program on what `feed` writes; its largest resident size in kB and the document."""
    command = [sys.executable, "-S", "-c", PEAK, str(find_capture_binary()), *arguments, "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        answer: list[bytes] = []
        reader = threading.Thread(target=lambda out=process.stdout: answer.append(out.read()))
        reader.start()
        feed(process.stdin)
        process.stdin.close()
        reader.join(300)
        status, peak = map(int, process.stderr.read().split())
    assert status == 0
    return peak, json.loads(answer[0])


def short_connections(out: IO[bytes], count: int, payload: int) -> None:
    """`count` whole connections one after the other, each with `payload` bytes of answer in packets of 1400."""
    import numpy as np

    packets_of_one = [
        cf.tcp(cf.CLIENT, cf.SERVER, cf.SYN, 0),
        cf.tcp(cf.SERVER, cf.CLIENT, cf.SYN | cf.ACK, 0, 1),
        *(cf.tcp(cf.SERVER, cf.CLIENT, cf.ACK, 1 + at, 1, b"z" * 1400) for at in range(0, payload, 1400)),
        cf.tcp(cf.CLIENT, cf.SERVER, cf.FIN | cf.ACK, 1, 1 + payload),
        cf.tcp(cf.SERVER, cf.CLIENT, cf.FIN | cf.ACK, 1 + payload, 2),
    ]
    records = cf.pcap(cf.frames([(0, packet) for packet in packets_of_one]))[24:]
    out.write(cf.pcap([]))
    group = 1000
    rows = np.tile(np.frombuffer(records, np.uint8), (group, 1))
    offsets, at = [], 0
    for packet in packets_of_one:
        offsets.append((at, packet[12:16] == bytes([10, 0, 6, 2])))
        at += 16 + 14 + len(packet)
    for first in range(0, count, group):
        numbers = np.arange(first, first + group)
        seconds = (numbers // 1000).astype("<u4").view(np.uint8).reshape(-1, 4)
        micros = (numbers % 1000 * 1000).astype("<u4").view(np.uint8).reshape(-1, 4)
        address = (0x0B000000 + numbers // 50_000).astype(">u4").view(np.uint8).reshape(-1, 4)
        port = (1024 + numbers % 50_000).astype(">u2").view(np.uint8).reshape(-1, 2)
        for at, from_client in offsets:
            rows[:, at : at + 4] = seconds
            rows[:, at + 4 : at + 8] = micros
            ip = at + 16 + 14 + (12 if from_client else 16)
            rows[:, ip : ip + 4] = address
            tcp = at + 16 + 14 + 20 + (0 if from_client else 2)
            rows[:, tcp : tcp + 2] = port
        out.write(rows.data)


def test_memory_is_bounded_by_open_connections() -> None:
    """200,000 short connections through a pipe: 500 MB, of which nothing may stay."""
    peak, document = peak_kb(lambda out: short_connections(out, 200_000, 1400), "--top=5")
    assert document["files"][0]["connection_count"] == 200_000
    assert document["files"][0]["counters"]["evicted"] == 0
    assert peak < LIMIT_KB


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_gigabytes_through_a_pipe() -> None:
    """A million connections of 10 kB each: 10 GB, under 200 MB."""
    peak, document = peak_kb(lambda out: short_connections(out, 1_000_000, 9800), "--top=5")
    trace = document["files"][0]
    assert trace["connection_count"] == 1_000_000
    assert trace["counters"]["wire_bytes"] > 10**10
    assert peak < LIMIT_KB


@pytest.mark.long
def test_a_flood_of_open_connections_stays_within_the_limit() -> None:
    """Two million SYNs from different addresses: the idle ones are put away, with a mark."""
    import numpy as np

    def flood(out: IO[bytes]) -> None:
        record = cf.pcap(cf.frames([(0, cf.tcp(cf.CLIENT, cf.SERVER, cf.SYN, 0))]))[24:]
        out.write(cf.pcap([]))
        for first in range(0, 2_000_000, 10_000):
            rows = np.tile(np.frombuffer(record, np.uint8), (10_000, 1))
            address = (0x0B000000 + np.arange(first, first + 10_000)).astype(">u4")
            rows[:, 16 + 26 : 16 + 30] = address.view(np.uint8).reshape(-1, 4)
            out.write(rows.data)

    peak, document = peak_kb(flood, "--top=5", "--memory=128")
    trace = document["files"][0]
    assert trace["connection_count"] == 2_000_000
    assert trace["counters"]["evicted"] > 0
    assert "evicted" in {limit["kind"] for limit in trace["limits"]}
    assert peak < LIMIT_KB
