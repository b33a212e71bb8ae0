"""Capturing from an interface: rolling figures, and Ctrl-C ends with the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.framework import IMPORTABLE
from tests.framework import traffic as ct
from tests.framework.processes import called, gone, wait_until
from tests.storm.ways import family

MAIN = "import sys; from guestmark.cli import main; sys.exit(main())"


def test_an_interrupt_ends_with_the_result() -> None:
    ct.need("dumpcap")
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


def test_nothing_outlives_a_killed_capture() -> None:
    ct.need("dumpcap")
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "capture", "--live", "lo"],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        both = ("dumpcap -q", "guestmark-capture")
        assert wait_until(lambda: all(any(one in called(pid) for pid in family(process.pid)) for one in both))
        known = list(family(process.pid))
        process.kill()
    assert gone(*known, seconds=2)


def test_an_interface_that_is_not_there_is_an_error() -> None:
    ct.need("dumpcap")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "capture", "--live", "nosuch0"],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "cannot capture on nosuch0" in done.stderr
    assert "Traceback" not in done.stderr
