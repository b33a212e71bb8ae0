"""Detects from an executable's file whether it is a debug build."""

from __future__ import annotations

import contextlib
import functools
import mmap
import re
import struct
import zlib
from collections.abc import Iterator

_MAGIC = b"\x7fELF"
_COMPRESSED = 0x800
# How compilers record their options in a program's debugging information (DWARF's DW_AT_producer).
_PRODUCER = re.compile(rb"GNU (?:C|C\+\+|GIMPLE)[^\0]*|clang version [^\0]*")
_LEVEL = re.compile(rb" -O(\S*)")
_UNOPTIMISED = (b"0", b"g")
# Functions that programs with sanitizers call.
_SANITIZERS = (b"__asan_init", b"__tsan_init", b"__msan_init", b"__ubsan_handle")


@functools.cache
def is_debug_build(path: str, _identity: tuple[int, int]) -> bool | None:
    """Returns whether an executable has sanitizers, or parts that were compiled without optimisation.

    None if the file does not show it, as for distributions' programs, from which debugging information is removed.
    """
    with (
        contextlib.suppress(OSError, ValueError, IndexError, struct.error, zlib.error),
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        if content[:4] != _MAGIC:
            return None
        sections = dict(_list_sections(content))
        names = sections.get(b".dynstr", b"") + sections.get(b".strtab", b"")
        if any(name in names for name in _SANITIZERS):
            return True
        text = sections.get(b".debug_str", b"") + sections.get(b".debug_line_str", b"")
        levels = []
        for producer in _PRODUCER.finditer(text):
            # Without -O, compilers do not optimise.
            options = _LEVEL.findall(producer[0]) or [b"0"]
            levels.append(options[-1])
        if not levels:
            return None
        return any(level in _UNOPTIMISED for level in levels)
    return None


def _list_sections(content: mmap.mmap) -> Iterator[tuple[bytes, bytes]]:
    """Yields name and content of the sections of an ELF file that describe its build. Raises `struct.error`."""
    wide = content[4] == 2
    order = ">"
    if content[5] == 1:
        order = "<"
    header = 12
    if wide:
        header = 24
        (start,) = struct.unpack_from(f"{order}Q", content, 0x28)
        size, number, names_at = struct.unpack_from(f"{order}HHH", content, 0x3A)
        layout = f"{order}IIQQQQ"
    else:
        (start,) = struct.unpack_from(f"{order}I", content, 0x20)
        size, number, names_at = struct.unpack_from(f"{order}HHH", content, 0x2E)
        layout = f"{order}IIIIII"
    headers = [struct.unpack_from(layout, content, start + index * size) for index in range(number)]
    if names_at >= len(headers):
        return
    table = headers[names_at]
    names = content[table[4] : table[4] + table[5]]
    for name_at, _, flags, _, offset, length in headers:
        name = names[name_at : names.index(b"\0", name_at)]
        if name not in (b".dynstr", b".strtab", b".debug_str", b".debug_line_str"):
            continue
        found = content[offset : offset + length]
        if flags & _COMPRESSED:
            found = zlib.decompress(found[header:])
        yield name, found
