"""Whether a fetched file really is in the guest: looked for in the guest's own memory, byte by byte."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError

if TYPE_CHECKING:
    from guestmark.workloads.netboot.content import Content
    from guestmark.workloads.netboot.machine import NetbootMachine

_MARK = 64  # bytes a file is looked for by; they are random
_DUMP_DEADLINE_S = 120.0


def check_fetched(machine: NetbootMachine, content: Content, number: int) -> int:
    """The guest-physical address of file `number`. Raises `WorkloadError` if it is nowhere in one piece.

    iPXE keeps what it has fetched in one piece, under BIOS and UEFI alike.
    """
    file = machine.scratch / "memory.bin"
    try:
        _dump(machine, str(file))
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as memory:
            address = _find(memory, content, number)
    finally:
        file.unlink(missing_ok=True)
    if address is None:
        raise WorkloadError(
            f"file {number} is not in the guest's memory as it was served ({len(content)} bytes)",
            hint="iPXE, the card or the network changed or lost bytes; the capture may show where",
        )
    return address


def _dump(machine: NetbootMachine, file: str) -> None:
    """All memory below 4 GB's hole; no file may be larger than fits there (iPXE has 32-bit addresses under BIOS)."""
    size = min(machine.settings.memory, 2 << 30)
    machine.monitor.execute(
        "pmemsave", {"val": 0, "size": size, "filename": file}, timeout_s=_DUMP_DEADLINE_S
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
                if there[at : at + middle] == begin and there[at + middle : at + end] == rest:
                    return at
                at = memory.find(mark, at + 1)
        finally:
            begin.release()
            rest.release()
    return None
