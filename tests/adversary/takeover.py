"""What a hypervisor could do to its host if somebody else's code ran in it. Run as a program, in its place.

Each attempt is aimed at something that exists: `targets` are the host's, made by `tests.adversary.host`. A line is
printed for each attempt: its name, and `reached` or why not. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
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
_NUMBERS = {  # by name: on x86_64, on aarch64
    "msgctl": (71, 187), "ioprio_set": (251, 30), "io_uring_setup": (425, 425), "keyctl": (250, 219),
    "add_key": (248, 217), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "bpf": (321, 280),
    "perf_event_open": (298, 241), "kexec_load": (246, 104), "init_module": (175, 105), "setns": (308, 268),
    "process_vm_readv": (310, 270), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "mount_setattr": (442, 442), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "clone3": (435, 435), "kcmp": (312, 272), "syslog": (103, 116), "sethostname": (170, 161),
    "fanotify_init": (300, 262), "clock_adjtime": (305, 266), "migrate_pages": (256, 238),
    "userfaultfd": (323, 282), "kexec_file_load": (320, 294), "open_tree_attr": (467, 467),
    "io_uring_enter": (426, 426),
}  # fmt: skip
_SYS = {name: numbers[os.uname().machine == "aarch64"] for name, numbers in _NUMBERS.items()}
targets = json.loads(sys.argv[1])


def call(*arguments: object, by: Callable[..., int] = _libc.syscall) -> int:
    """A system call by its number. Raises `OSError`."""
    # Whole registers: what is on the stack has upper halves, too.
    whole = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = by(*whole)
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


def send_by_pair(kind: int) -> None:
    """From a pair of sockets, which takes no `socket`: a datagram goes wherever it says."""
    for made in socket.socketpair(socket.AF_UNIX, kind):
        made.sendto(b"x", targets["datagrams"])


def connect_pair() -> None:
    made, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.connect(targets["datagrams"])


def by_ring(*requests: Callable[[int], bytes]) -> None:
    """Requests in a ring of io_uring, each with the result of the one before. Raises `OSError`."""
    parameters = ctypes.create_string_buffer(120)
    ring = call(_SYS["io_uring_setup"], 4, parameters)
    _, sq_tail, _, _, _, _, sq_array = struct.unpack_from("7I", parameters, 40)
    cqes = struct.unpack_from("6I", parameters, 80)[5]
    shared = mmap.mmap(ring, 1 << 13)
    entries = mmap.mmap(ring, 4096, offset=0x10000000)
    result = 0
    for number, request in enumerate(requests):
        entries[:64] = request(result).ljust(64, b"\0")
        struct.pack_into("I", shared, sq_array + 4 * (number % 4), 0)
        struct.pack_into("I", shared, sq_tail, number + 1)
        call(_SYS["io_uring_enter"], ring, 1, 1, 1, 0, 0)
        (result,) = struct.unpack_from("i", shared, cqes + 16 * number + 8)
        if result < 0:
            raise OSError(-result, os.strerror(-result))


_MADE_SOCKET, _CONNECT = 45, 16  # operations of io_uring


def connect_by_ring(family: int, address: bytes) -> None:
    kept = ctypes.create_string_buffer(struct.pack("H", family) + address)
    by_ring(
        lambda _: struct.pack("BBHiQQII", _MADE_SOCKET, 0, 0, family, socket.SOCK_STREAM, 0, 0, 0),
        lambda made: struct.pack(
            "BBHiQQII", _CONNECT, 0, 0, made, len(kept) - 1, ctypes.addressof(kept), 0, 0
        ),
    )


def flags_of_file() -> None:
    """That backups leave a file out: a request that takes no right to write."""
    file = os.open(targets["victim"], os.O_RDONLY)
    flags = struct.unpack("l", fcntl.ioctl(file, 0x80086601, bytes(8)))[0]
    fcntl.ioctl(file, 0x40086602, struct.pack("l", flags | 0x40))


def core() -> None:
    """The host's kernel writes a dead process's memory, or gives it to a program of the host's."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    pid = os.fork()
    if pid == 0:
        os.chdir(targets["inside"])
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    if not os.WCOREDUMP(os.waitpid(pid, 0)[1]):
        raise OSError("none was written")


def signal_by_file() -> None:
    """Sent by the kernel, when there is something to be read."""
    read, write_end = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, targets["other_process"])
    fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGSTOP)
    fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(write_end, b"x")
    raise OSError("the host saw nothing of it")


def netlink() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as made:
        made.bind((0, 0))
        made.send(struct.pack("IHHII4xBxHiII", 32, 18, 0x305, 1, 0, 0, 0, 0, 0, 0)[:32])
        if targets["interface"].encode() not in made.recv(1 << 16):
            raise OSError("the host's networks are not among what is told")


def write(path: str, text: str = "x") -> None:
    with open(path, "w") as file:
        file.write(text)


def remount() -> None:
    checked(_libc.mount(None, b"/", None, 32, None))


def namespace() -> None:
    checked(_libc.unshare(0x40000000))


def checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def by_pidfd(name: str, *arguments: object) -> None:
    call(_SYS[name], call(_SYS["pidfd_open"], targets["process"], 0), *arguments)


def from_memory() -> None:
    """Of a process of the same program: where its first mapping is, is the same there."""
    place = int(Path("/proc/self/maps").read_text().split("-")[0], 16)
    with contextlib.suppress(OSError):
        place = int(Path(f"/proc/{targets['process']}/maps").read_text().split("-")[0], 16)
    here = ctypes.create_string_buffer(8)
    mine = struct.pack("QQ", ctypes.addressof(here), 8)
    call(_SYS["process_vm_readv"], targets["process"], mine, 1, struct.pack("QQ", place, 8), 1, 0)


def count() -> None:
    """What a process of the host does, counted: software event 0, its clock."""
    attributes = struct.pack("IIQ", 1, 112, 0) + bytes(96)
    call(_SYS["perf_event_open"], attributes, targets["process"], -1, -1, 0)


def program_in_kernel() -> None:
    """A map of an extended Berkeley packet filter."""
    call(_SYS["bpf"], 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(100), 116)


def joined(kind: str) -> None:
    call(_SYS["setns"], os.open(f"/proc/{targets['process']}/ns/{kind}", os.O_RDONLY), 0)


def cloned() -> None:
    """A child in a network of its own, by the call whose flags no filter sees."""
    flags = struct.pack("QQQQQQQQ", 0x40000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    # The interpreter's lock is kept: in the child nobody would give it back.
    pid = call(_SYS["clone3"], flags, 64, by=ctypes.PyDLL(None, use_errno=True).syscall)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def named_handle() -> None:
    """A handle that was made in here, of the victim, through the directory that is writable."""
    handle = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136)
    mount = ctypes.c_int()
    call(_SYS["name_to_handle_at"], _AT_FDCWD, targets["victim"].encode(), handle, ctypes.byref(mount), 0)
    call(_SYS["open_by_handle_at"], os.open(targets["inside"], os.O_RDONLY), handle, os.O_RDWR)


def writable_again() -> None:
    call(_SYS["mount_setattr"], -1, b"/", 0x8000, struct.pack("QQQQ", 0, 1, 0, 0), 32)


def mounted_again() -> None:
    tree = call(_SYS["open_tree"], _AT_FDCWD, targets["outside"].encode(), 1)
    call(_SYS["mount_setattr"], tree, b"", 0x1000, struct.pack("QQQQ", 0, 1, 0, 0), 32)
    call(_SYS["move_mount"], tree, b"", _AT_FDCWD, targets["inside"].encode(), 4)


def loop_device() -> None:
    """A loop device over a file that can be read, by a device that can be read."""
    control, victim = (os.open(path, os.O_RDONLY) for path in ("/dev/loop-control", targets["victim"]))
    for left in reversed(range(20)):
        try:
            device = os.open(f"/dev/loop{fcntl.ioctl(control, 0x4C82)}", os.O_RDONLY)
            fcntl.ioctl(device, 0x4C00, victim)
        except OSError as error:
            # Another process can take a free device first, or be about to return it.
            if error.errno not in {errno.EBUSY, errno.ENXIO} or not left:
                raise
        else:
            fcntl.ioctl(device, 0x4C01)
            return


def typed() -> None:
    """Into the user's terminal, as if by the user."""
    fcntl.ioctl(os.open(targets["terminal"], os.O_RDWR | os.O_NOCTTY), 0x5412, b"x")


def left_group() -> None:
    """Into the group at the top, which has no limits."""
    places = [path for path in Path("/sys/fs/cgroup").glob("**/cgroup.procs") if len(path.parts) <= 6]
    if not places:
        raise FileNotFoundError(2, "no groups are seen")
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            os.close(os.open(place, os.O_WRONLY))
            return
    os.close(os.open(places[-1], os.O_WRONLY))


def raw_packets() -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300) as made:
        made.bind((targets["interface"], 3))


def vsock() -> None:
    socket.socket(40, socket.SOCK_STREAM).close()


def cipher() -> None:
    with socket.socket(38, socket.SOCK_SEQPACKET) as made:
        made.bind(("hash", "sha256"))


def clock() -> None:
    """The length of its ticks, set to what it is."""
    settings = ctypes.create_string_buffer(208)
    call(_SYS["clock_adjtime"], 0, settings)
    struct.pack_into("I", settings, 0, 0x4000)
    call(_SYS["clock_adjtime"], 0, settings)


def own_name() -> None:
    name = os.uname().nodename.encode()
    call(_SYS["sethostname"], name, len(name))


def by_32_bits() -> None:
    """`socket` by its number among calls of 32 bits."""
    if os.uname().machine != "x86_64":
        raise OSError("there are none here")
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, 359; mov ebx, 1; mov ecx, 1; mov edx, 0; push rbx kept by the caller; int 0x80; ret
    code.write(bytes.fromhex("53b867010000bb01000000b901000000ba00000000cd805bc3"))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    if (result := function()) < 0:
        raise OSError(-result, os.strerror(-result))


def by_x32() -> None:
    call(0x40000000 + 41, socket.AF_INET, socket.SOCK_STREAM, 0)


def lease() -> None:
    """Whoever opens it to write has to wait."""
    fcntl.fcntl(os.open(targets["owned"], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)


def faults() -> None:
    """Faults of pages, which keep the kernel waiting wherever it reads them: first its own, too, then users' alone."""
    for flags in (0, 1):
        with contextlib.suppress(PermissionError):
            os.close(call(_SYS["userfaultfd"], flags))
            return
    raise PermissionError(1, "not permitted in either way")


def pipe() -> None:
    with open(os.open(targets["pipe"], os.O_WRONLY | os.O_NONBLOCK), "wb") as end:
        end.write(b"x")


def take() -> None:
    with open(os.open(targets["full_pipe"], os.O_RDONLY | os.O_NONBLOCK), "rb") as end:
        if end.read(1) != b"x":
            raise OSError("nothing was in it")


def ended_last() -> None:
    """When memory runs out, no earlier than what nothing keeps from anything."""
    write("/proc/self/oom_score_adj", "0")


def console() -> None:
    """Settings of a terminal of the host's kernel, set to what they are."""
    file = os.open("/dev/tty1", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    settings = fcntl.ioctl(file, 0x5401, bytes(60))
    fcntl.ioctl(file, 0x5402, settings)


def real_time() -> None:
    """Before all others, on every processor."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def trace() -> None:
    checked(_libc.ptrace(16, targets["process"], None, None))


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
    checked(_libc.ptrace(16, 1, None, None))
    os.waitpid(1, 0x40000000)
    checked(_libc.ptrace(17, 1, None, None))  # in a container it is who waits for this program


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


def memory() -> None:
    """More than the machine has, in a process that has left its session and its parent."""
    read, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            with contextlib.suppress(MemoryError):
                taken = mmap.mmap(-1, targets["memory"])
                for page in range(0, len(taken), mmap.PAGESIZE):
                    taken[page] = 1
                os.write(done, b"x")
        os._exit(0)
    os.close(done)
    os.waitpid(pid, 0)
    if not os.read(read, 1):
        raise OSError("it was ended")


ATTEMPTS: dict[str, Callable[[], object]] = {
    "change a file of the host": lambda: write(targets["victim"]),
    "make a file": lambda: write(targets["outside"] + "/made"),
    "change a file's mode": lambda: os.chmod(targets["victim"], 0o777),
    "change a file's flags": flags_of_file,
    "change a file by its handle": by_handle,
    "write to a raw disk": lambda: os.close(os.open(targets["disk"], os.O_WRONLY)),
    "make a device": lambda: os.mknod(targets["inside"] + "/disk", 0o060600, os.stat("/").st_dev),
    "remount the root": remount,
    "change a setting of the kernel": lambda: os.close(os.open("/proc/sys/vm/swappiness", os.O_WRONLY)),
    "change a file by a handle made inside": named_handle,
    "make mounts writable again": writable_again,
    "mount a directory once more": mounted_again,
    "open a tree of mounts with attributes": lambda: call(
        _SYS["open_tree_attr"], _AT_FDCWD, targets["outside"].encode(), 1, struct.pack("QQQQ", 0, 1, 0, 0), 32
    ),
    "a new filesystem": lambda: call(_SYS["fsopen"], b"tmpfs", 0),
    "make a loop device": loop_device,
    "leave its control groups": left_group,
    "the kernel's log": lambda: os.close(os.open("/dev/kmsg", os.O_WRONLY)),
    "read the kernel's log": lambda: call(_SYS["syslog"], 3, ctypes.create_string_buffer(64), 64),
    "the host's name": own_name,
    "the host's clock": clock,
    "load another kernel": lambda: call(_SYS["kexec_load"], 0, 0, None, 0),
    "load another kernel from a file": lambda: call(
        _SYS["kexec_file_load"], os.open("/bin/true", os.O_RDONLY), -1, 1, b"", 4
    ),
    "load a module": lambda: call(_SYS["init_module"], b"x", 1, b""),
    "a program in the kernel": program_in_kernel,
    "watch every file": lambda: call(_SYS["fanotify_init"], 4, 0),
    "make a namespace": namespace,
    "make a namespace by clone3": cloned,
    "join the network of a process": lambda: joined("net"),
    "TCP": lambda: connect(socket.SOCK_STREAM),
    "TCP by MPTCP": lambda: connect(socket.SOCK_STREAM, MPTCP),
    "TCP by MSG_FASTOPEN": fast_open,
    "listen on TCP": listen,
    "UDP": datagram,
    "netlink": netlink,
    "raw packets": raw_packets,
    "a socket to virtual machines": vsock,
    "the kernel's ciphers": cipher,
    "a socket by a call of 32 bits": by_32_bits,
    "a socket by a call of x32": by_x32,
    "a Unix socket by path": lambda: local(targets["socket"]),
    "a datagram to a Unix socket": send_local,
    "a datagram by a pair of sockets": lambda: send_by_pair(socket.SOCK_DGRAM),
    "a datagram by a raw pair of sockets": lambda: send_by_pair(socket.SOCK_RAW),
    "connect a pair of sockets elsewhere": connect_pair,
    "TCP by a ring": lambda: connect_by_ring(
        socket.AF_INET, struct.pack("!HI", targets["port"], 0x7F000001) + bytes(8)
    ),
    "a Unix socket by a ring": lambda: connect_by_ring(socket.AF_UNIX, targets["socket"].encode() + b"\0"),
    "an abstract Unix socket": lambda: local("\0" + targets["abstract"]),
    "a signal to a process": lambda: os.kill(targets["process"], signal.SIGWINCH),
    "a signal by descriptor": lambda: by_pidfd("pidfd_send_signal", signal.SIGWINCH, 0, 0),
    "take a descriptor of a process": lambda: by_pidfd("pidfd_getfd", 1, 0),
    "read another's memory": from_memory,
    "compare with a process": lambda: call(_SYS["kcmp"], targets["process"], os.getpid(), 1, 0, 0),
    "count what a process does": count,
    "move memory of a process": lambda: call(
        _SYS["migrate_pages"], targets["process"], 8, b"\1" + bytes(7), b"\1" + bytes(7)
    ),
    "the root of a process": lambda: os.listdir(f"/proc/{targets['process']}/root"),
    "prlimit on a process": lambda: resource.prlimit(targets["process"], resource.RLIMIT_CPU, (1, 1)),
    "the nice value of a process": lambda: os.setpriority(os.PRIO_PROCESS, targets["process"], 5),
    "the processors of a process": lambda: os.sched_setaffinity(targets["process"], {0}),
    "the I/O class of a process": lambda: call(_SYS["ioprio_set"], 1, targets["process"], 3 << 13),
    "the I/O class of all processes of a user": lambda: call(_SYS["ioprio_set"], 3, 0, 3 << 13),
    "trace a process": trace,
    "memory of a process": lambda: open(f"/proc/{targets['process']}/mem", "rb").close(),
    "descriptors of a process": lambda: write(f"/proc/{targets['process']}/fd/1"),
    "trace the cage's first process": first_process,
    "remove a message queue": lambda: call(_SYS["msgctl"], targets["queue"], 0, 0),
    "the user's terminal": lambda: write(targets["terminal"]),
    "type into the user's terminal": typed,
    "io_uring": rings,
    "userfaultfd": faults,
    "userfaultfd by its device": lambda: fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDONLY), 0xAA00, 0),
    "keep writers of a file waiting": lease,
    "write to a named pipe": pipe,
    "take what is in a named pipe": take,
    "have a core written": core,
    "settings of a console": console,
    "be ended last when memory runs out": ended_last,
    "run before all others": real_time,
    "a key": lambda: call(_SYS["keyctl"], 0, -4, 0),
    "add a key": lambda: call(_SYS["add_key"], b"user", b"guestmark-test", b"x", 1, -2),
    "stop a process by a file": signal_by_file,
    "end a process": lambda: os.kill(targets["process"], signal.SIGKILL),
    "more memory than a machine may have": memory,
    "more processes than a machine may have": bomb,
}


def tried(attempt: Callable[[], object]) -> str:
    """What became of it."""
    try:
        attempt()
    except OSError as error:
        return error.strerror or str(error)
    return "reached"


def main() -> None:
    """Tries all of it, one after the other; what hangs is a failure of that attempt."""
    for name, attempt in ATTEMPTS.items():
        part = "memory" if attempt is memory else "processes" if attempt is bomb else "most"
        if targets["part"] != part:
            continue
        said: list[str] = []
        if attempt is bomb:
            said.append(tried(attempt))
        else:
            thread = threading.Thread(
                target=lambda attempt=attempt, said=said: said.append(tried(attempt)), daemon=True
            )
            thread.start()
            thread.join(10)
        print(json.dumps({"attempt": name, "said": said[0] if said else "it hung"}), flush=True)
    print(json.dumps({"held": os.environ.get("GUESTMARK_CONFINED", "")}), flush=True)
    if "stay" in targets:
        Path(targets["stay"]).write_text("x")
    os._exit(0)


main()
