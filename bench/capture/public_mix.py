"""Merge other people's captures into one: `python bench/capture/public_mix.py DIR OUT [--times N]`.

All Ethernet frames of the captures below DIR, file after file in the order of their names, become one classic capture
file, which all tools can read; OUT contains them N times. This repository contains none of these captures: download
collections, each into a folder of DIR.
"""

from __future__ import annotations

import argparse
import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

ENDINGS = {".pcap", ".pcapng", ".cap", ".trace", ".trc", ".dmp", ".ntar"}
_ETHERNET = 1
_CLASSIC = {0xA1B2C3D4: 1, 0xA1B23C4D: 1000}  # with how many of its units are a microsecond
_SECTION, _INTERFACE, _ENHANCED, _RESOLUTION = 0x0A0D0D0A, 1, 6, 9
_MOST = 262_144

Record = tuple[int, int, bytes]  # microseconds, length on the wire, frame


def read_records(data: bytes) -> Iterator[Record]:
    """Yield every Ethernet frame up to the end, or to the first unreadable record."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    for order in "<>":
        if len(data) >= 24 and (unit := _CLASSIC.get(struct.unpack_from(order + "I", data)[0])):
            yield from _of_classic(data, order, unit)
            return
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        yield from _of_pcapng(data)


def _of_classic(data: bytes, order: str, unit: int) -> Iterator[Record]:
    if struct.unpack_from(order + "H", data, 20 if order == "<" else 22)[0] != _ETHERNET:
        return
    at = 24
    while at + 16 <= len(data):
        seconds, part, captured, wire = struct.unpack_from(order + "IIII", data, at)
        at += 16
        if captured > _MOST or at + captured > len(data):
            return
        yield seconds * 1_000_000 + part // unit, max(wire, captured), data[at : at + captured]
        at += captured


def _of_pcapng(data: bytes) -> Iterator[Record]:
    at, order, interfaces = 0, "<", list[tuple[int, int]]()
    while at + 12 <= len(data):
        kind = struct.unpack_from(order + "I", data, at)[0]
        if kind == _SECTION:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        length = struct.unpack_from(order + "I", data, at + 4)[0]
        if length < 12 or length % 4 or at + length > len(data):
            return
        body = data[at + 8 : at + length - 4]
        if kind == _INTERFACE:
            interfaces.append((struct.unpack_from(order + "H", body)[0], _time_unit(body, order)))
        elif kind == _ENHANCED:
            number, high, low, captured, wire = struct.unpack_from(order + "IIIII", body)
            if number < len(interfaces) and interfaces[number][0] == _ETHERNET and captured <= len(body) - 20:
                time = (high << 32 | low) * 1_000_000 // interfaces[number][1]
                yield time, max(wire, captured), body[20 : 20 + captured]
        at += length


def _time_unit(body: bytes, order: str) -> int:
    """Return the units of an interface's clock in a second."""
    at = 8
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        if code == _RESOLUTION and length:
            said = body[at + 4]
            return 1 << (said & 0x7F) if said & 0x80 else int(10**said)
        at += 4 + (length + 3) // 4 * 4
    return 1_000_000


def write(folder: Path, out: Path, times: int) -> tuple[int, int]:
    """Write the mix; return how many files and how many packets are in it."""
    files = packets = 0
    whole = bytearray()
    for path in sorted(folder.rglob("*")):
        name = path.with_suffix("") if path.suffix == ".gz" else path
        if name.suffix.lower() not in ENDINGS or not path.is_file():
            continue
        before = packets
        try:
            for time, wire, frame in read_records(path.read_bytes()):
                seconds, part = divmod(time, 1_000_000)
                whole += (
                    struct.pack("<IIII", seconds & 0xFFFFFFFF, part, len(frame), wire & 0xFFFFFFFF) + frame
                )
                packets += 1
        except (OSError, EOFError, struct.error):
            pass
        files += packets > before
    with out.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, _MOST, _ETHERNET))
        for _ in range(times):
            file.write(whole)
    return files, packets * times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=4)
    given = parser.parse_args()
    files, packets = write(given.folder, given.out, given.times)
    print(f"{files:,} files, {packets:,} packets, {given.out.stat().st_size:,} bytes")
