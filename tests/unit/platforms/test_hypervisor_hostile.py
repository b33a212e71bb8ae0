"""A hypervisor that was taken over lies to guestmark: in its scratch directory, and as its monitor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from guestmark.agent.confinement import STOPS_FILE
from guestmark.core.architectures import find_host_architecture
from guestmark.core.errors import MachineError
from guestmark.disks import processes
from guestmark.platforms.affinity import find_vcpu_threads
from guestmark.platforms.counters import read_guest_counters, read_uml_stops
from guestmark.platforms.place import open_plain_file, read_plain_file
from guestmark.platforms.qemu.attest import query_vmm
from guestmark.platforms.qmp import Monitor

_LIMIT_S = 10.0


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


_IN_PLACE_OF_A_FILE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file of the host": lambda path: path.symlink_to("/etc/hostname"),
    "a directory": Path.mkdir,
    "a terabyte": _sparse,
    "too much": lambda path: path.write_bytes(b"\xff" * 4096),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("what", _IN_PLACE_OF_A_FILE)
def test_what_is_put_in_place_of_a_file_costs_nothing(tmp_path: Path, what: str) -> None:
    _IN_PLACE_OF_A_FILE[what](tmp_path / STOPS_FILE)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(read_uml_stops, tmp_path)
        try:
            assert asked.result(_LIMIT_S) == {}
        finally:  # whoever waits for a writer
            with contextlib.suppress(OSError):
                os.close(os.open(tmp_path / STOPS_FILE, os.O_WRONLY | os.O_NONBLOCK))


def test_stops_are_counted(tmp_path: Path) -> None:
    (tmp_path / STOPS_FILE).write_bytes((7).to_bytes(8, "little"))
    assert read_uml_stops(tmp_path) == {"uml_stops": 7.0}


def test_plain_files_alone_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_plain_file(tmp_path / "file", 7) == b"content"
    for path, at_most in (("file", 6), ("link", 7), ("none", 7)):
        with pytest.raises(OSError, match=rf"more than|symbolic links|{path}"):
            read_plain_file(tmp_path / path, at_most)
    with open_plain_file(tmp_path / "file") as file:
        assert file.read() == b"content"


_GREETING = {
    "QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}, "capabilities": []}
}
_LIES = {
    "garbage": b"\xff\xfe\0{{{\n",
    "a number": b"7\n",
    "an empty list": b"[]\n",
    "nested without end": b"[" * 200_000 + b"]" * 200_000 + b"\n",
    "nested objects": b'{"return":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n",
    "an endless line": b"[" + b"1," * (8 << 20),
    "a huge number": b'{"return": ' + b"9" * 100_000 + b', "id": "x"}\n',
    "an error without words": b'{"error": 3, "id": "x"}\n',
    "another's answer": b'{"return": {}, "id": "somebody else"}\n',
    "silence": b"",
    "the end": None,
}


@pytest.mark.parametrize("lie", _LIES)
@pytest.mark.parametrize("greets", [True, False])
def test_a_monitor_that_lies_costs_the_trial(lie: str, greets: bool) -> None:
    ours, theirs = socket.socketpair()
    liar = threading.Thread(target=_lies, args=(theirs, _LIES[lie], greets), daemon=True)
    liar.start()
    monitor = Monitor(ours)
    begin = time.monotonic()
    try:
        with pytest.raises(MachineError) as caught:
            monitor.execute("query-kvm", timeout_s=1.0)
        assert len(caught.value.message) < 1000
    finally:
        monitor.close()
        theirs.close()
    assert time.monotonic() - begin < _LIMIT_S
    liar.join(_LIMIT_S)


def _lies(line: socket.socket, lie: bytes | None, greets: bool) -> None:
    with contextlib.suppress(OSError, ValueError):
        if greets:
            line.sendall(json.dumps(_GREETING).encode() + b"\n")
            line.recv(4096)  # what it asks for its capabilities, without an id
            line.sendall(b'{"return": {}}\n')
            line.recv(4096)
        if lie is None:
            line.close()
        else:
            line.sendall(lie)


_SHAPES: list[object] = [
    7,
    None,
    [],
    [7],
    "x",
    {},
    [{}],
    [{"thread-id": "x", "cpu-index": 0}],
    [{"cpu-index": {}}, {"cpu-index": 1}],
]


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_an_answer_of_another_shape_costs_the_trial(shape: object) -> None:
    ours, theirs = socket.socketpair()
    threading.Thread(target=_answers, args=(theirs, shape), daemon=True).start()
    monitor = Monitor(ours)
    try:
        with pytest.raises(MachineError, match="malformed answer"):
            query_vmm(monitor, find_host_architecture())
        with contextlib.suppress(MachineError):
            read_guest_counters(None, monitor.execute)
        with contextlib.suppress(MachineError):
            find_vcpu_threads(monitor.execute("query-cpus-fast"), os.getpid())
    finally:
        monitor.close()
        theirs.close()


def _answers(line: socket.socket, shape: object) -> None:
    """The same to everything."""
    with contextlib.suppress(OSError, ValueError):
        line.sendall(json.dumps(_GREETING).encode() + b"\n")
        while request := line.recv(4096):  # one at a time, without a newline
            asked = json.loads(request)
            own = {"id": asked["id"]} if "id" in asked else {}
            line.sendall(json.dumps({"return": shape if own else {}, **own}).encode() + b"\n")


@pytest.mark.long
def test_events_do_not_pile_up() -> None:
    ours, theirs = socket.socketpair()
    monitor = Monitor(ours)
    threading.Thread(target=_talks, args=(theirs,), daemon=True).start()
    tracemalloc.start()
    try:
        assert monitor.execute("query-kvm", timeout_s=60.0) == "answer"
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        monitor.close()
        theirs.close()
    assert held < _EVENTS * 100


_EVENTS = 20_000


def _talks(line: socket.socket) -> None:
    event = json.dumps({"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 1}}).encode() + b"\n"
    with contextlib.suppress(OSError, ValueError):
        line.sendall(json.dumps(_GREETING).encode() + b"\n")
        line.recv(4096)
        line.sendall(b'{"return": {}}\n')
        asked = json.loads(line.recv(4096))
        for _ in range(_EVENTS // 1000):
            line.sendall(event * 1000)
        line.sendall(json.dumps({"return": "answer", "id": asked["id"]}).encode() + b"\n")


def test_threads_of_others_are_not_moved_on_its_word() -> None:
    (own,) = [number for number in processes.map_threads(os.getpid()) if number == threading.get_native_id()]
    told = [{"cpu-index": 0, "thread-id": own}]
    assert find_vcpu_threads(told, os.getpid()) == (own,)
    for number in (1, os.getppid()):
        for pid in (os.getpid(), None):
            with pytest.raises(MachineError, match="does not have"):
                find_vcpu_threads([*told, {"cpu-index": 1, "thread-id": number}], pid)
