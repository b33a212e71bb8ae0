"""Capturing from an interface: rolling figures, and Ctrl-C ends with the result."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from guestmark.capture.binary import find_capture_binary
from guestmark.capture.model import Document
from tests.framework import IMPORTABLE
from tests.framework import traffic as ct
from tests.framework.endpoints import client_context, server_context
from tests.framework.processes import called, gone, wait_until
from tests.storm.ways import family

FAILED = 3
MAIN = "import sys; from guestmark.cli import main; sys.exit(main())"


def test_an_interrupt_ends_with_the_result() -> None:
    listener, stop = ct.echo_server(b"a" * 100, 0.02)
    port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "capture", "--live", "lo", "--filter", str(port)],
        env={**os.environ, "PYTHONPATH": IMPORTABLE, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    assert process.stderr
    told = b""
    try:
        while b"server" not in told and time.monotonic() < deadline:
            ct.talk(listener.getsockname(), 10, 100, 0.0)
            os.set_blocking(process.stderr.fileno(), False)
            told += process.stderr.read() or b""
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    finally:
        stop()
        process.kill()
    assert b"packets, " in told
    assert process.returncode == 0
    assert f"127.0.0.1:{port}" in output.decode()
    assert "server 9" in output.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_alone_ends_with_the_result(number: signal.Signals) -> None:
    process = capturing("--live", "lo")
    listener, stop = ct.echo_server(b"a" * 100, 0.0)
    server = listener.getsockname()
    try:
        assert process.stderr
        assert process.stderr.readline()  # it captures
        ct.talk(server, 10, 100, 0.0)
        time.sleep(0.3)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    finally:
        stop()
        process.kill()
    assert process.returncode == 0
    assert f"127.0.0.1:{server[1]}" in output


def test_handshakes_are_timed_live() -> None:
    """Certificates are longer than headers."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = server_context()

    def serve() -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
            peer.sendall(peer.recv(100))

    thread = threading.Thread(target=serve)
    thread.start()
    process = capturing("--live", "lo", "--details")
    try:
        assert process.stderr
        assert process.stderr.readline()
        with client_context().wrap_socket(socket.create_connection(listener.getsockname())) as own:
            own.sendall(b"hello")
            assert own.recv(100) == b"hello"
        thread.join()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        listener.close()
    (line,) = [line for line in output.splitlines() if line.startswith("TLS")]
    assert "1 handshakes" in line
    assert "done median" in line, line


def test_nothing_outlives_a_killed_capture() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "capture", "--live", "lo"],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        name = "guestmark-capture"
        assert wait_until(lambda: any(name in called(pid) for pid in family(process.pid)))
        known = list(family(process.pid))
        process.kill()
    assert gone(*known, seconds=20)


def capturing(*words: str) -> subprocess.Popen[str]:
    """`capture` at work, with what it says in pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "capture", *words],
        env={**os.environ, "PYTHONPATH": IMPORTABLE, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def live(interface: str, *before: str) -> subprocess.CompletedProcess[str]:
    """`capture --live` of an interface, as `before` starts it."""
    return subprocess.run(
        [*before, sys.executable, "-c", MAIN, "capture", "--live", interface],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_interface_that_is_not_there_is_an_error() -> None:
    done = live("nosuch0")
    assert done.returncode == FAILED
    assert "cannot capture on nosuch0" in done.stderr
    assert "build it" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_card_of_another_network_namespace_is_captured() -> None:
    """`/sys` still shows the cards of the namespace that it was mounted in."""
    made = "ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up"
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f'{made} && exec "$0" --live --progress v0', find_capture_binary()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr
    try:
        first = process.stderr.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (b"packets" in first, process.returncode) == (True, 0)
    assert msgspec.json.decode(output, type=Document).files[0].error is None


def test_every_packet_of_a_burst_is_counted_with_its_headers_alone() -> None:
    """As many datagrams as were sent, each as long as it was on the wire, and cut to its headers."""
    count, size = 20_000, 1_000
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    port = receiver.getsockname()[1]
    process = subprocess.Popen(
        [find_capture_binary(), "--live", "--progress", f"--filter={port}", "lo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr
    try:
        assert process.stderr.readline()  # it captures
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for _ in range(count):
            sender.sendto(b"x" * size, ("127.0.0.1", port))
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        receiver.close()
    trace = msgspec.json.decode(output, type=Document).files[0]
    (flow,) = trace.connections
    assert flow.client.packets + trace.counters["dropped"] >= count
    assert flow.client.packets <= count
    assert flow.client.payload_bytes == size * flow.client.packets
    assert trace.counters["cut"] >= flow.client.packets


def test_without_the_right_to_capture_another_program_is_asked() -> None:
    """Both are refused here, and the second one says why."""
    ct.need("dumpcap", "setpriv")
    done = live("lo", "setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "sudo" in done.stderr, done.stderr
