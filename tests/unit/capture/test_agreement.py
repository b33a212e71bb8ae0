"""Counts, bytes and durations of real traffic agree exactly with tshark and tcptrace."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection, Side, Trace
from tests.framework import IMPORTABLE
from tests.framework import traffic as ct


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IPv4 and IPv6 on loopback: sequential and parallel connections, one reset, UDP beside."""
    ct.need("dumpcap", "tshark", "tcptrace")
    path = tmp_path_factory.mktemp("capture") / "loopback.pcapng"
    with ct.own_network(), ct.dumping(path):
        four, stop_four = ct.echo_server(b"a" * 50_000, 0.002)
        six, stop_six = ct.echo_server(b"b" * 1_000, 0.0, "::1")
        for number in range(4):
            ct.talk(four.getsockname(), 5, 50_000, 0.004, reset=number == 2)
        for _ in range(10):
            ct.talk(six.getsockname()[:2], 3, 1_000, 0.0)
        stop_four()
        stop_six()
    return path


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real retransmissions and reordering, each connection seen before and behind the loss."""
    ct.need("dumpcap", "tshark", "tcptrace", "unshare")
    path = tmp_path_factory.mktemp("capture") / "lossy.pcapng"
    path.touch(0o666)
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-m", "tests.framework.lossy_tunnel", str(path)],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"the tunnel needs root and /dev/net/tun: {done.stderr}"
    return path


def sides(connection: Connection, first: tuple[str, int]) -> tuple[Side, Side]:
    client = (connection.client.address, connection.client.port) == first
    return (connection.client, connection.server) if client else (connection.server, connection.client)


def in_order(trace: Trace) -> list[Connection]:
    return [connection for connection in trace.connections if connection.protocol == "tcp"]


@pytest.mark.parametrize("which", ["loopback", "lossy"])
def test_agrees_with_tshark_packet_by_packet(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    ours, theirs = in_order(analyse_file(path)), ct.by_tshark(path)
    assert len(ours) == len(theirs) > 3
    for connection, seen in zip(ours, theirs, strict=True):
        a, b = sides(connection, seen.a)
        assert ((a.address, a.port), (b.address, b.port)) == (seen.a, seen.b)
        assert (a.packets, b.packets) == seen.packets
        assert (a.wire_bytes, b.wire_bytes) == seen.sizes
        assert connection.duration_s == pytest.approx(seen.duration, abs=1e-12)


@pytest.mark.parametrize("which", ["loopback", "lossy"])
def test_agrees_with_tshark_conversations(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    theirs = {(seen.a, seen.b): seen for seen in ct.by_tshark_conversations(path)}
    for connection in in_order(analyse_file(path)):
        ends = (
            (connection.client.address, connection.client.port),
            (connection.server.address, connection.server.port),
        )
        seen = theirs.pop(ends)
        assert (connection.client.packets, connection.server.packets) == seen.packets
        for own, size in zip(
            (connection.client.wire_bytes, connection.server.wire_bytes), seen.sizes, strict=True
        ):
            assert size in {own, -1}
        assert f"{connection.duration_s:.4f}" == f"{seen.duration:.4f}"
    assert not theirs


@pytest.mark.parametrize("which", ["loopback", "lossy"])
def test_agrees_with_tcptrace(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    # tcptrace reads classic captures with microseconds.
    classic = path.with_suffix(".pcap")
    ct.run("editcap", "-F", "pcap", str(path), str(classic))
    ours = in_order(analyse_file(classic))
    theirs = {(traced.a, traced.b): traced for traced in ct.by_tcptrace(classic)}
    for connection in ours:
        ends = (
            (connection.client.address, connection.client.port),
            (connection.server.address, connection.server.port),
        )
        if which == "loopback" and ":" in connection.client.address:
            continue  # tcptrace shortens IPv6 addresses in its own way; tshark vouches for those
        traced = theirs.pop(ends)
        assert (connection.client.packets, connection.server.packets) == traced.packets
        assert (connection.client.payload_bytes, connection.server.payload_bytes) == traced.payload
        assert (connection.client.unique_bytes, connection.server.unique_bytes) == traced.unique
        assert (
            connection.client.retransmitted_bytes,
            connection.server.retransmitted_bytes,
        ) == traced.retransmitted
        assert connection.duration_s == traced.duration
    assert all(":" in traced.a[0] for traced in theirs.values())


def test_loss_and_reordering_are_seen(lossy: Path) -> None:
    trace = analyse_file(lossy)
    assert trace.counters["missing_bytes"] == 0
    servers = [connection.server for connection in in_order(trace)]
    assert {server.unique_bytes for server in servers} == {180_000}
    # Before the loss repeated bytes are seen, behind it bytes that come late.
    assert any(server.retransmitted_bytes > 0 for server in servers)
    assert any(server.out_of_order > 0 for server in servers)


def test_says_who_is_slow(tmp_path: Path) -> None:
    ct.need("dumpcap")
    path = tmp_path / "slow.pcapng"
    with ct.dumping(path):
        listener, stop = ct.echo_server(b"a" * 100, 0.001)
        port = listener.getsockname()[1]
        ct.talk(listener.getsockname(), 20, 100, 0.02)
        stop()
    # Other tests talk over loopback at the same time.
    (connection,) = [
        connection
        for connection in in_order(analyse_file(path))
        if port in (connection.client.port, connection.server.port)
    ]
    assert connection.client.response.share
    assert connection.server.response.share
    assert connection.unknown_share is not None
    assert connection.client.response.share > 3 * connection.server.response.share
    total = connection.client.response.share + connection.server.response.share + connection.unknown_share
    assert total == pytest.approx(1, abs=1e-9)
    assert connection.client.response.p50_s == pytest.approx(0.02, rel=0.25)


def test_a_short_snapshot_length_loses_no_figure(tmp_path: Path) -> None:
    ct.need("dumpcap", "editcap")
    whole, cut = tmp_path / "whole.pcapng", tmp_path / "cut.pcapng"
    with ct.dumping(whole):
        listener, stop = ct.echo_server(b"a" * 30_000, 0.0)
        ct.talk(listener.getsockname(), 3, 30_000, 0.0)
        stop()
    ct.run("editcap", "-s", "96", str(whole), str(cut))
    full, short = analyse_file(whole), analyse_file(cut)
    assert full.connections == short.connections
    assert short.counters["cut"] > 0 == full.counters["cut"]


def test_half_captured_connections_are_marked(tmp_path: Path) -> None:
    ct.need("dumpcap")
    path, copy = tmp_path / "half.pcapng", tmp_path / "early.pcapng"
    listener, stop = ct.echo_server(b"a" * 100, 0.0)
    server: tuple[str, int] = listener.getsockname()
    with socket.create_connection(server) as early:
        time.sleep(0.1)
        # Other tests fill loopback at the same time, so that a copy would end within a packet of theirs.
        with ct.dumping(path, only=f"port {server[1]}"):
            early.sendall(b"q" * 64)
            early.recv(100)
            with socket.create_connection(server) as late:
                late.sendall(b"q" * 64)
                late.recv(100)
                time.sleep(0.8)
                shutil.copyfile(path, copy)
    stop()
    captured = {connection.captured for connection in analyse_file(copy).connections}
    assert captured == {"middle", "no-end"}
