"""What a hypervisor could do to its host if somebody else's code ran in it. Run as a program, in its place.

Each attempt is aimed at something that exists: `targets` are the host's, made by `tests.adversary.host`. A line is
printed
for each attempt: its name, and `reached` or why not. Only the standard library is used.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

MPTCP = 262
_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_SYS = {  # of x86_64 and aarch64
    "x86_64": {
        "msgctl": 71,
        "ioprio_set": 251,
        "io_uring_setup": 425,
        "keyctl": 250,
        "open_by_handle_at": 304,
    },
    "aarch64": {
        "msgctl": 187,
        "ioprio_set": 30,
        "io_uring_setup": 425,
        "keyctl": 219,
        "open_by_handle_at": 265,
    },
}[os.uname().machine]
targets = json.loads(sys.argv[1])


def call(*arguments: object) -> int:
    """A system call by its number. Raises `OSError`."""
    result = int(_libc.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def connect(kind: int, protocol: int = 0) -> None:
    with socket.socket(socket.AF_INET, kind, protocol) as made:
        made.settimeout(2)
        made.connect(("127.0.0.1", targets["port"]))


def fast_open() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", targets["port"]))


def datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", ("127.0.0.1", targets["udp_port"]))


def listen() -> None:
    socket.create_server(("127.0.0.1", 0)).close()


def local(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(2)
        made.connect(path)


def send_local() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", targets["datagrams"])


def netlink() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as made:
        made.bind((0, 0))
        made.send(struct.pack("IHHII4xBxHiII", 32, 18, 0x305, 1, 0, 0, 0, 0, 0, 0)[:32])
        if targets["interface"].encode() not in made.recv(1 << 16):
            raise OSError("the host's networks are not among what is told")


def write(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


def remount() -> None:
    if _libc.mount(None, b"/", None, 32, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def namespace() -> None:
    if _libc.unshare(0x10000000) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def trace() -> None:
    if _libc.ptrace(16, targets["process"], None, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def by_handle() -> None:
    """The victim's inode through a mount that is writable."""
    handle = ctypes.create_string_buffer(bytes.fromhex(targets["handle"]))
    mount = os.open(targets["inside"], os.O_RDONLY)
    descriptor = call(_SYS["open_by_handle_at"], mount, handle, os.O_RDWR)
    os.write(descriptor, b"x")


def rings() -> None:
    call(_SYS["io_uring_setup"], 4, ctypes.create_string_buffer(120))


def first_process() -> None:
    """That of the cage, which is not confined."""
    if os.readlink("/proc/1/ns/pid") == targets["pid_namespace"] or os.getpid() == 1:
        raise ProcessLookupError("there is none")
    if _libc.ptrace(16, 1, None, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def bomb() -> None:
    """As many processes as it gets, which wait; more than a machine is allowed are enough."""
    read, hold = os.pipe()
    made = []
    try:
        for _ in range(targets["many"]):
            pid = os.fork()
            if pid == 0:
                os.close(hold)
                os.read(read, 1)
                os._exit(0)
            made.append(pid)
    finally:
        os.close(hold)
        os.close(read)
        for pid in made:
            os.waitpid(pid, 0)


ATTEMPTS: dict[str, Callable[[], object]] = {
    "change a file of the host": lambda: write(targets["victim"]),
    "make a file": lambda: write(targets["outside"] + "/made"),
    "change a file's mode": lambda: os.chmod(targets["victim"], 0o777),
    "change a file by its handle": by_handle,
    "write to a raw disk": lambda: os.close(os.open(targets["disk"], os.O_WRONLY)),
    "make a device": lambda: os.mknod(targets["inside"] + "/disk", 0o060600, os.stat("/").st_dev),
    "remount the root": remount,
    "change a setting of the kernel": lambda: write("/proc/sys/vm/swappiness"),
    "make a namespace": namespace,
    "TCP": lambda: connect(socket.SOCK_STREAM),
    "TCP by MPTCP": lambda: connect(socket.SOCK_STREAM, MPTCP),
    "TCP by MSG_FASTOPEN": fast_open,
    "listen on TCP": listen,
    "UDP": datagram,
    "netlink": netlink,
    "a Unix socket by path": lambda: local(targets["socket"]),
    "a datagram to a Unix socket": send_local,
    "an abstract Unix socket": lambda: local("\0" + targets["abstract"]),
    "a signal to a process": lambda: os.kill(targets["process"], signal.SIGKILL),
    "prlimit on a process": lambda: resource.prlimit(targets["process"], resource.RLIMIT_CPU, (1, 1)),
    "the nice value of a process": lambda: os.setpriority(os.PRIO_PROCESS, targets["process"], 5),
    "the processors of a process": lambda: os.sched_setaffinity(targets["process"], {0}),
    "the I/O class of a process": lambda: call(_SYS["ioprio_set"], 1, targets["process"], 3 << 13),
    "trace a process": trace,
    "memory of a process": lambda: open(f"/proc/{targets['process']}/mem", "rb").close(),
    "descriptors of a process": lambda: write(f"/proc/{targets['process']}/fd/1"),
    "trace the cage's first process": first_process,
    "remove a message queue": lambda: call(_SYS["msgctl"], targets["queue"], 0, 0),
    "the user's terminal": lambda: write(targets["terminal"]),
    "io_uring": rings,
    "a key": lambda: call(_SYS["keyctl"], 0, -4, 0),
    "more processes than a machine may have": bomb,
}


def main() -> None:
    """Tries all of it, one after the other; what hangs is a failure of that attempt."""
    for name, attempt in ATTEMPTS.items():
        said: list[str] = []

        def tried(attempt: Callable[[], object] = attempt, said: list[str] = said) -> None:
            try:
                attempt()
                said.append("reached")
            except OSError as error:
                said.append(error.strerror or str(error))

        if "process" in name and "more" in name:
            tried()
        else:
            thread = threading.Thread(target=tried, daemon=True)
            thread.start()
            thread.join(5)
        print(json.dumps({"attempt": name, "said": said[0] if said else "it hung"}), flush=True)
    print(json.dumps({"held": os.environ.get("GUESTMARK_CONFINED", "")}), flush=True)
    if "stay" in targets:
        Path(targets["stay"]).write_text("x")
    os._exit(0)


main()
