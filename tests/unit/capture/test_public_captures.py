"""The examination of other people's captures: it finds nothing in what is right, and each kind of fault where it is."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.public_captures.__main__ import Kind, examine_capture

from guestmark.capture.binary import find_capture_binary
from tests.framework import CHECKOUT
from tests.framework import captures as cf
from tests.framework.tcp_model import Model, Numbers, conversations, repaired

LIE = """#!{python}
import json, subprocess, sys
document = json.loads(subprocess.run([{engine!r}, *sys.argv[1:]], stdout=subprocess.PIPE).stdout)
connection = document["files"][0]["connections"][0]
{lie}
print(json.dumps(document))
"""
LIES = {
    Kind.OVER: 'connection["server"]["response"]["share"] = 66.0',
    Kind.NEGATIVE: 'connection["client"]["rtt"]["min_s"] = -0.5',
    Kind.SUM: 'connection["causes"]["idle_s"] += 1',
    Kind.LOSS: 'connection["causes"]["recovery_s"] = 1e6',
    Kind.MERGED: 'connection["marks"].append("merged")',
    Kind.CLOCK: 'connection["marks"].append("clock-backwards"); connection["confidence"] = "high"',
    Kind.DIFFERENT: 'connection["client"]["packets"] += 1',
    Kind.CRASH: "sys.exit(101)",
}


def talk(folder: Path) -> Path:
    path = folder / "talk.pcap"
    path.write_bytes(conversations(20, 10).seen_at(client=False))
    return path


def written(folder: Path) -> Path:
    """A collection of captures that differ in all that the slow parser knows."""
    collection = folder / "collection"
    collection.mkdir(parents=True)
    steps = cf.conversation()
    wide = cf.conversation(("fd00::1", 1028), ("fd00::2", 8000))
    for name, kind, tags in (
        ("plain", cf.ETHERNET, []),
        ("vlan", cf.ETHERNET, [0x8100]),
        ("qinq", cf.ETHERNET, [0x88A8, 0x8100]),
        ("cooked", cf.SLL, []),
        ("cooked2", cf.SLL2, []),
        ("raw", cf.RAW, []),
        ("null", cf.NULL, []),
    ):
        for version, packets in (("4", steps), ("6", wide)):
            data = cf.pcap(cf.frames(packets, kind, tags), kind)
            (collection / f"{name}{version}.pcap").write_bytes(data)
    (collection / "packed.pcap.gz").write_bytes(gzip.compress(cf.pcap(cf.frames(steps))))
    blocks = [cf.enhanced(packet, packet.ns) for packet in cf.frames(steps)]
    (collection / "blocks.pcapng").write_bytes(b"".join([cf.section(), cf.interface(tsresol=9), *blocks]))
    for number, model in enumerate((repaired(30, frozenset({5})), Model(10, Numbers.HOST, others=40))):
        if not model.sent:
            model.shake_hands()
        (collection / f"model{number}.pcap").write_bytes(model.seen_at(client=True))
    return folder


def test_nothing_is_wrong_with_captures_of_every_kind(tmp_path: Path) -> None:
    done = subprocess.run(
        [CHECKOUT / "tools/public-captures", "--list", written(tmp_path)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| collection | 18 |" in done.stdout, done.stdout
    assert "18 tuples were compared with the slow parser" in done.stdout


@pytest.mark.parametrize("kind", LIES)
def test_an_engine_that_lies_is_caught(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = talk(tmp_path)
    assert examine_capture(path, with_tshark=False).found == []
    lie = LIE.format(python=sys.executable, engine=str(find_capture_binary()), lie=LIES[kind])
    liar = tmp_path / "liar"
    liar.write_text(lie)
    liar.chmod(0o755)
    monkeypatch.setenv("GUESTMARK_CAPTURE", str(liar))
    assert kind in {found for found, _ in examine_capture(path, with_tshark=False).found}


def test_tshark_is_asked_where_it_is_there(tmp_path: Path) -> None:
    examined = examine_capture(talk(tmp_path), with_tshark=True)
    assert examined.by_tshark == 1
    assert examined.found == []


def test_a_file_that_breaks_off_is_named_and_no_fault(tmp_path: Path) -> None:
    path = talk(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    assert {found for found, _ in examine_capture(path, with_tshark=False).found} == {Kind.UNREADABLE}
