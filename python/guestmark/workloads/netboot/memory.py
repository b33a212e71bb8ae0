"""Whether a fetched file really is in the guest: looked for in the guest's own memory, byte by byte."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError

if TYPE_CHECKING:
    from guestmark.workloads.netboot.content import Content
    from guestmark.workloads.netboot.machine import NetbootMachine

_MARK = 64  # bytes a file is looked for by; they are random
_DUMP_DEADLINE_S = 120.0
_PIECE = 1 << 20


def check_fetched(machine: NetbootMachine, content: Content, number: int) -> int:
    """The guest-physical address of file `number`. Raises `WorkloadError` if it is nowhere in one piece.

    iPXE keeps what it has fetched in one piece, under BIOS and UEFI alike.
    """
    file = machine.scratch / "memory.bin"
    if machine.fetched_to is not None and _is_at(machine, content, number, machine.fetched_to, file):
        return machine.fetched_to  # where the last one was, which spares a search
    try:
        # No file may be larger than fits below 4 GB's hole (iPXE has 32-bit addresses under BIOS).
        _dump(machine, file, 0, min(machine.settings.memory, 2 << 30))
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as memory:
            address = _find(memory, content, number)
    finally:
        file.unlink(missing_ok=True)
    if address is None:
        raise WorkloadError(
            f"file {number} is not in the guest's memory as it was served ({len(content)} bytes)",
            hint="iPXE, the card or the network changed or lost bytes; the capture may show where",
        )
    machine.fetched_to = address
    return address


def _dump(machine: NetbootMachine, file: Path, begin: int, size: int) -> None:
    machine.monitor.execute(
        "pmemsave", {"val": begin, "size": size, "filename": str(file)}, timeout_s=_DUMP_DEADLINE_S
    )


def _is_at(machine: NetbootMachine, content: Content, number: int, address: int, file: Path) -> bool:
    """Whether the file, every byte of it, is at that guest-physical address."""
    first, second = content.parts(number)
    try:
        _dump(machine, file, address, len(content))
        with (
            file.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as memory,
            memoryview(memory) as there,
            memoryview(content.view) as whole,
        ):
            middle = first.stop - first.start
            return _equal(there[:middle], whole[first]) and _equal(there[middle:], whole[second])
    finally:
        file.unlink(missing_ok=True)


def _equal(one: memoryview, other: memoryview) -> bool:
    """Compared by pieces: of memory views Python compares every element on its own."""
    with one, other:
        return len(one) == len(other) and all(
            bytes(one[at : at + _PIECE]) == bytes(other[at : at + _PIECE])
            for at in range(0, len(one), _PIECE)
        )


def _find(memory: mmap.mmap, content: Content, number: int) -> int | None:
    first, second = content.parts(number)
    with memoryview(content.view) as whole, memoryview(memory) as there:
        begin, rest = whole[first], whole[second]
        mark = (
            bytes(begin[:_MARK]) if len(begin) >= _MARK else bytes(begin) + bytes(rest[: _MARK - len(begin)])
        )
        middle, end = len(begin), len(begin) + len(rest)
        try:
            at = memory.find(mark)
            while at >= 0:
                # Another file's remains hold this one's mark, too, but never what follows it to the end.
                if _equal(there[at : at + middle], begin[:]) and _equal(
                    there[at + middle : at + end], rest[:]
                ):
                    return at
                at = memory.find(mark, at + 1)
        finally:
            begin.release()
            rest.release()
    return None
