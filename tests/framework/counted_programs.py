"""Programs of a few machine instructions that do one thing a known number of times, and then end."""

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """Instructions of one architecture, and the ELF header's fields for it."""

    machine: int
    order: str  # of bytes, as `struct` has it
    jump: bytes  # to what comes next
    leave: bytes  # exit(0)
    flags: int = 0


def _code(machine: int, order: str, jump: str, leave: str, flags: int = 0) -> Code:
    return Code(machine, order, bytes.fromhex(jump), bytes.fromhex(leave), flags)


X86_64 = _code(62, "<", "eb00", "31ff b83c000000 0f05")
CODE = {  # by the names of `core.architectures`; those with 64 bits
    "x86_64": X86_64,
    "arm64": _code(183, "<", "01000014", "000080d2 a80b80d2 010000d4"),
    "ppc64el": _code(21, "<", "04000048", "01000038 00006038 02000044", flags=2),
    "riscv64": _code(243, "<", "6f004000", "13050000 9308d005 73000000"),
    # The jump skips an instruction: QEMU does not end a block at a jump to the instruction that follows anyway.
    "s390x": _code(22, ">", "a7f40004 47000000", "a7290000 0a01"),
    "sparc64": _code(43, ">", "30800002 01000000", "82102001 90102000 91d0206d"),
}
_START = 0x400000
_PAGE = 65536  # the largest of these architectures
_MAP = bytes.fromhex(  # mmap(NULL, 256 KiB, read and write, private and anonymous), its address to rbx
    "31ff be00000400 ba03000000 41ba22000000 4d31c0 49ffc8 4531c9 b809000000 0f05 4889c3"
)
_TOUCH = bytes.fromhex("b940000000 4889d8 c60001 480500100000 ffc9 75f3")  # writes to each of these 64 pages
_PROTECT = bytes.fromhex("4889df be00000400 ba01000000 b80a000000 0f05")  # mprotect(rbx, 256 KiB, read)
_ALLOW = bytes.fromhex(
    "4889df be00000400 ba03000000 b80a000000 0f05"
)  # mprotect(rbx, 256 KiB, read and write)


def system_calls(count: int) -> bytes:
    """Return a program that calls getppid `count` times."""
    return _program(_repeated(bytes.fromhex("b86e000000 0f05"), count))


def identifications(count: int) -> bytes:
    """Return a program that executes CPUID `count` times, which every hypervisor on hardware has to emulate."""
    return _program(_repeated(bytes.fromhex("31c0 31c9 0fa2"), count))


def protections(count: int) -> bytes:
    """Return a program that removes and restores the right to write to 64 pages, `count` times.

    These are more pages than Linux invalidates one by one, so each turn flushes the whole TLB.
    """
    return _program(_MAP + _repeated(_TOUCH + _PROTECT + _ALLOW, count))


def jumps(count: int, code: Code = X86_64) -> bytes:
    """Return a program that jumps `count` times to the next instruction: as many blocks of code, each run once."""
    return _program(code.jump * count, code)


def _repeated(code: bytes, count: int) -> bytes:
    """Return a loop that executes the code `count` times, with the number of turns left in r12; empty for 0."""
    turn = code + b"\x49\xff\xcc"  # dec r12
    back = b"\x0f\x85" + struct.pack("<i", -len(turn) - 6)  # jnz
    return b"\x49\xbc" + struct.pack("<q", count) + turn + back if count else b""


def _program(instructions: bytes, code: Code = X86_64) -> bytes:
    """Return an ELF file with one segment, which is loaded at a fixed address."""
    header, segment = 64, 56
    size = header + segment + len(instructions) + len(code.leave)
    fields = (
        2,
        code.machine,
        1,
        _START + header + segment,
        header,
        0,
        code.flags,
        header,
        segment,
        1,
        0,
        0,
        0,
    )
    return (
        (b"\x7fELF\x02" + (b"\x01" if code.order == "<" else b"\x02") + b"\x01").ljust(16, b"\0")
        + struct.pack(f"{code.order}HHIQQQIHHHHHH", *fields)
        + struct.pack(f"{code.order}IIQQQQQQ", 1, 5, 0, _START, _START, size, size, _PAGE)
        + instructions
        + code.leave
    )
