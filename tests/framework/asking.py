"""Makes a program's requests to the kernel by `io_uring(7)` and `io_submit(2)`, without a library.

Tests run it as text: their programs begin with the text of this file. `Ring.ask` queues an entry, `Ring.enter` submits
all entries and waits.
"""

import ctypes
import mmap
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
FSYNC, POLL, WRITE, RENAME = 3, 6, 23, 35
FIXED, DRAIN, LINK, SILENT = 1, 2, 4, 64
SQPOLL = 2
# io_setup, io_submit and io_getevents have numbers of their own on x86-64.
SETUP, SUBMIT, EVENTS = (206, 209, 208) if os.uname().machine == "x86_64" else (0, 2, 4)
buffers: list[ctypes.Array[ctypes.c_char]] = []


def call(number: int, *arguments: object) -> int:
    """Make the system call with this number. Raises `OSError`."""
    result = libc.syscall(number, *[ctypes.c_long(one) if isinstance(one, int) else one for one in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), f"call {number}")
    return int(result)


def address(data: bytes) -> int:
    """Copy the data into memory that is never freed, and return its address; 0 for no data."""
    if not data:
        return 0
    buffers.append(ctypes.create_string_buffer(data, len(data)))
    return ctypes.addressof(buffers[-1])


class Ring:
    """One `io_uring`."""

    def __init__(self, entries: int = 8, flags: int = 0) -> None:
        parameters = ctypes.create_string_buffer(struct.pack("10I80x", 0, 0, flags, *[0] * 7), 120)
        self.fd = call(425, entries, ctypes.addressof(parameters))
        words = struct.unpack("30I", parameters.raw)
        self.sq, self.cq = words[10:20], words[20:30]
        self.entries = mmap.mmap(self.fd, words[0] * 64, offset=0x10000000)
        self.asked = mmap.mmap(self.fd, self.sq[6] + words[0] * 4)
        self.results = mmap.mmap(self.fd, self.cq[5] + words[1] * 16, offset=0x8000000)
        self.count = 0

    def word(self, ring: mmap.mmap, at: int) -> int:
        """Return the number at an offset of a ring, which the kernel may change at any time."""
        return int(struct.unpack_from("I", ring, at)[0])

    def ask(
        self,
        opcode: int,
        fd: int,
        data: bytes = b"",
        at: int = 0,
        *,
        key: int = 0,
        flags: int = 0,
        how: int = 0,
        length: int | None = None,
    ) -> None:
        """Queue an entry; `how` holds `RWF_` flags, or the flags of a flush, a rename or an open."""
        tail = self.word(self.asked, self.sq[1])
        place = tail & self.word(self.asked, self.sq[2])
        length = len(data) if length is None else length
        entry = struct.pack("=BBHiQQIIQ24x", opcode, flags, 0, fd, at, address(data), length, how, key)
        self.entries[place * 64 : place * 64 + 64] = entry
        struct.pack_into("I", self.asked, self.sq[6] + place * 4, place)
        struct.pack_into("I", self.asked, self.sq[1], tail + 1)
        self.count += 1

    def enter(self, wait: int | None = None) -> None:
        """Submit all queued entries, and wait for as many results, or for `wait` of them."""
        count, self.count = self.count, 0
        call(426, self.fd, count, count if wait is None else wait, 1, 0, 0)

    def take(self) -> list[tuple[int, int]]:
        """Return the keys and results that have arrived, without a system call."""
        head, tail = self.word(self.results, self.cq[0]), self.word(self.results, self.cq[1])
        found = []
        for number in range(head, tail):
            at = self.cq[5] + (number & self.word(self.results, self.cq[2])) * 16
            found.append(struct.unpack_from("=Qi", self.results, at))
        struct.pack_into("I", self.results, self.cq[0], tail)
        return found

    def register(self, files: list[int]) -> None:
        """Register files, which entries with `FIXED` name by their index."""
        array = (ctypes.c_int * len(files))(*files)
        call(427, self.fd, 2, ctypes.addressof(array), len(files))


class Context:
    """One queue of `io_setup(2)`."""

    def __init__(self, count: int = 8) -> None:
        found = ctypes.c_ulong(0)
        call(SETUP, count, ctypes.addressof(found))
        self.address = found.value

    def submit(self, *requests: tuple[int, int, bytes, int]) -> None:
        """Submit requests, each given by opcode, descriptor, data and offset."""
        pointers = (ctypes.c_void_p * len(requests))()
        for index, (opcode, fd, data, at) in enumerate(requests):
            block = struct.pack(
                "=QIIHhIQQqQII", 0, 0, 0, opcode, 0, fd, address(data), len(data), at, 0, 0, 0
            )
            pointers[index] = address(block)
        call(SUBMIT, self.address, len(requests), ctypes.addressof(pointers))

    def wait(self, count: int) -> None:
        """Wait for this many results."""
        events = ctypes.create_string_buffer(32 * count)
        call(EVENTS, self.address, count, count, ctypes.addressof(events), 0)


def opened(name: str, flags: int = 0) -> int:
    """Open a file for reading and writing, creating it if necessary; return its descriptor."""
    return os.open(name, os.O_CREAT | os.O_RDWR | flags)
