"""Search for errors in the analyses of other people's captures: `tools/public-captures [--list] DIR`.

Every capture below DIR is analysed, with requests and the packets that ended the longest waits. Reported are crashes,
impossible values (shares over 100 %, negative times, causes that do not add up), verdicts without evidence (loss
without a sign of it, merged captures with different packets, high confidence although clocks stepped), refused
verdicts, and tuples whose counts differ from those of a second, slow parser and, in every nth file, of tshark. The
exit status is 1 if anything is found that must not be.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from bench.public_captures.slow_parser import Talk, Tuple, parse_talks

from guestmark.capture import verdict
from guestmark.capture.binary import find_capture_binary
from guestmark.capture.model import Connection, Document, Trace
from tests.framework.traffic import by_tshark_conversations

ENDINGS = {".pcap", ".pcapng", ".cap", ".trace", ".trc", ".dmp", ".ntar"}
_PATIENCE_S = 60
_SAME = 1e-6
_TWICE = 0.8  # of the packets of two captures of one connection


class Kind(StrEnum):
    """Kinds of findings; those after `DIFFERENT` are no faults."""

    CRASH = "crashes and hangs"
    OVER = "shares over 100 %"
    NEGATIVE = "negative times"
    SUM = "causes that do not add up"
    LOSS = "loss as the main cause without a sign of one"
    MERGED = "merged, but the packets differ"
    CLOCK = "high confidence although clocks stepped back"
    DIFFERENT = "tuples counted otherwise than by the slow parser"
    TSHARK = "tuples counted otherwise than by tshark"
    NUMBERS = "loss as the main cause by packet numbers alone"
    REFUSED = "verdicts refused"
    UNREADABLE = "files that break off or are no captures"


FAULTS = tuple(kind for kind in Kind if kind not in {Kind.NUMBERS, Kind.REFUSED, Kind.UNREADABLE})


@dataclass
class Examined:
    """The findings in one file."""

    path: Path
    packets: int = 0
    connections: int = 0
    tuples: int = 0
    by_tshark: int = 0
    found: list[tuple[Kind, str]] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/public-captures", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--list", action="store_true", help="name each finding")
    parser.add_argument(
        "--tshark", type=int, default=0, metavar="EACH", help="compare each so-many-th file with tshark"
    )
    parser.add_argument("--from", dest="start", type=Path, default=Path(), help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.start / given.folder
    if not root.is_dir():
        sys.exit(
            f"public-captures: {given.folder} is no folder\n"
            "  fetch collections of captures into one, each in a folder of its own"
        )
    files = sorted(path for path in root.rglob("*") if _is_capture(path))
    compared = {path for at, path in enumerate(files) if given.tshark and at % given.tshark == 0}
    with ProcessPoolExecutor(2) as pool:
        examined = list(pool.map(examine_capture, files, [path in compared for path in files], chunksize=8))
    _print_report(root, examined, named=given.list)
    sys.exit(any(kind in FAULTS for one in examined for kind, _ in one.found))


def _is_capture(path: Path) -> bool:
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return name.suffix.lower() in ENDINGS and path.is_file()


def examine_capture(path: Path, with_tshark: bool) -> Examined:
    """Analyse one file, and return everything found in it."""
    out = Examined(path)
    command = [str(find_capture_binary()), "--requests", "--guilty", "--sequences=2", "--", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)
        plain = json.loads(done.stdout)
        (trace,) = msgspec.convert(plain, Document).files
    except (subprocess.TimeoutExpired, ValueError, msgspec.ValidationError) as error:
        out.found.append((Kind.CRASH, str(error)[:200]))
        return out
    if done.returncode not in {0, 1}:
        out.found.append((Kind.CRASH, f"status {done.returncode}"))
    if trace.error:
        out.found.append((Kind.UNREADABLE, trace.error.reason))
    out.packets, out.connections = trace.counters["packets"], trace.connection_count
    out.found += [(Kind.NEGATIVE, f"{name} {value}") for name, value in _negative(plain, "")]
    weak = verdict.find_doubt(trace)
    if weak is not None and weak.refused:
        out.found.append((Kind.REFUSED, weak.reason))
    try:
        seen = parse_talks(path)
    except (ValueError, OSError, EOFError):
        seen = {}
    streams = [known for known in trace.connections if known.protocol == "tcp"]
    for known in streams:
        out.found += _judged(known, seen)
    # Tunnels are not looked into, and a broken file is read to another place.
    if seen and not trace.error and not trace.counters["tunnelled"] and not trace.counters["opaque"]:
        out.tuples = len(seen)
        out.found += _compared(trace, seen)
        if with_tshark:
            out.by_tshark, different = _compared_with_tshark(trace, path)
            out.found += different
    return out


def _negative(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _negative(one, f"{name}.{key}")
    elif isinstance(value, list):
        for one in value:
            yield from _negative(one, name)
    # A clock that was never set counts from before 1970.
    elif isinstance(value, int | float) and value < 0 and not name.endswith("start_ns"):
        yield name, value


def _judged(known: Connection, seen: dict[Tuple, Talk]) -> Iterator[tuple[Kind, str]]:
    name = f"#{known.index} {known.client.address}:{known.client.port} → {known.server.address}:{known.server.port}"
    for side in (known.client, known.server):
        if side.response.share is not None and side.response.share > 1 + _SAME:
            yield Kind.OVER, f"{name}: {side.response.share:.0%}"
    if "clock-backwards" in known.marks and known.confidence == "high":
        yield Kind.CLOCK, name
    talk = seen.get(_tuple_of(known))
    if "merged" in known.marks and talk is not None and talk.twice < _TWICE:
        yield Kind.MERGED, f"{name}: {talk.twice:.0%} of the packets are there twice"
    spent = verdict.list_cause_shares(known.causes)
    if not spent:
        return
    whole = sum(getattr(known.causes, f"{part.cause}_s") or 0.0 for part in spent)
    if abs(whole - known.duration_s) > _SAME * max(1.0, known.duration_s):
        yield Kind.SUM, f"{name}: {whole} of {known.duration_s} s"
    main = verdict.find_main_cause(known.causes)
    if main is not None and main.cause == "recovery" and talk is not None and not talk.evidence:
        yield (Kind.NUMBERS if talk.skipped else Kind.LOSS), f"{name}: {main.share:.0%}, {known.confidence}"


def _tuple_of(known: Connection) -> Tuple:
    one, other = sorted((_packed(side.address), side.port) for side in (known.client, known.server))
    return one, other


def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def _compared(trace: Trace, seen: dict[Tuple, Talk]) -> Iterator[tuple[Kind, str]]:
    """Compare packets and payload of each end of a tuple with the slow parser's counts; yield the differences.

    If the capture holds packets of an end twice, its payload is not compared.
    """
    counts: Counter[tuple[Tuple, bytes, int]] = Counter()
    sizes: Counter[tuple[Tuple, bytes, int]] = Counter()
    copied = set()
    for known in trace.connections:
        if known.protocol != "tcp":
            continue
        for side in (known.client, known.server):
            place = (_tuple_of(known), _packed(side.address), side.port)
            counts[place] += side.packets + side.copies
            sizes[place] += side.payload_bytes
            if side.copies:
                copied.add(place)
    there = {(ends, *end): sent for ends, talk in seen.items() for end, sent in talk.sent.items()}
    for place in counts.keys() | there.keys():
        sent = there.get(place)
        packets, payload = (sent.packets, sent.payload) if sent else (0, 0)
        same = sizes[place] == payload or place in copied
        if counts[place] != packets or not same:
            end = f"{ipaddress.ip_address(place[1])}:{place[2]}"
            yield (
                Kind.DIFFERENT,
                f"{end}: {counts[place]} packets, {sizes[place]} B, not {packets}, {payload} B",
            )


def _compared_with_tshark(trace: Trace, path: Path) -> tuple[int, list[tuple[Kind, str]]]:
    """Compare the packets of each tuple with tshark's conversations; return the number of tuples and the differences.

    Conversations that reuse the ports of a tuple are added up.
    """
    theirs: Counter[Tuple] = Counter()
    for seen in by_tshark_conversations(path):
        one, other = sorted((_packed(host), port) for host, port in (seen.a, seen.b))
        theirs[one, other] += sum(seen.packets)
    ours: Counter[Tuple] = Counter()
    for known in trace.connections:
        if known.protocol == "tcp":
            ours[_tuple_of(known)] += sum(side.packets + side.copies for side in (known.client, known.server))
    different = [
        (Kind.TSHARK, f"{_spelled(ends)}: {ours[ends]} packets, not {theirs[ends]}")
        for ends in ours.keys() | theirs.keys()
        if ours[ends] != theirs[ends]
    ]
    return len(theirs), different


def _spelled(ends: Tuple) -> str:
    return " – ".join(f"{ipaddress.ip_address(address)}:{port}" for address, port in ends)


def _print_report(root: Path, examined: list[Examined], *, named: bool) -> None:
    if named:
        for one in examined:
            for kind, what in one.found:
                print(f"{kind}: {one.path.relative_to(root)}: {what}")
        print()
    print("| collection | files | packets | connections |\n| --- | ---: | ---: | ---: |")
    folders: dict[str, list[Examined]] = {}
    for one in examined:
        folders.setdefault(one.path.relative_to(root).parts[0], []).append(one)
    for name, ones in [*folders.items(), ("all", examined)]:
        packets, connections = sum(one.packets for one in ones), sum(one.connections for one in ones)
        print(f"| {name} | {len(ones):,} | {packets:,} | {connections:,} |")
    tuples, by_tshark = sum(one.tuples for one in examined), sum(one.by_tshark for one in examined)
    print(f"\n{tuples:,} tuples were compared with the slow parser, {by_tshark:,} with tshark.\n")
    print("| found | how often | in files |\n| --- | ---: | ---: |")
    for kind in Kind:
        files = [sum(found is kind for found, _ in one.found) for one in examined]
        print(f"| {kind} | {sum(files):,} | {sum(map(bool, files)):,} |")


if __name__ == "__main__":
    main()
