"""What is found out about a trial has every key that version 0.1 gave it: a producer that drops one is noticed here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.framework import recorded
from tests.framework.command_line import CommandLine
from tests.framework.marks import long

ONE_BLOCK = ["--blocks", "1", "--null", "none", "--quiet", "--json", "-"]
# What a machine, or its user, has names of its own for.
FREE = ("counted.", "ipxe.", "capture_picture.", "disks.target.cache.")


def named(keys: Iterator[str] | list[str]) -> set[str]:
    """The keys that guestmark itself gives."""
    return {key for key in keys if not key.startswith(FREE) and ".per_operation." not in key}


@pytest.mark.parametrize(
    ("run", "arguments"),
    [
        long("20261122-215509-9ty", ["exec", "--on", "host,uml,tcg", "--", "/bin/sh", "-c", ":"]),
        long("20261122-220850-mjn", ["exec", "--on", "tcg/uml", "--", "/bin/true"]),
        ("20261122-220649-srp", ["run", "syscalls", "--scale", "0.02", "--on", "host,uml"]),
        ("20261122-215946-1h9", ["boot", "--on", "uml", "--initcalls"]),
        long("20261122-220722-vtf", ["run", "filesystems", "--scale", "0.02", "--only", "filesystem=ext2"]),
        (
            "20261122-220748-a9a",
            ["run", "filesystems", "--scale", "0.02", "--only", "platform=host and workload=write,read"],
        ),
        long(
            "20261122-220345-rz5",
            ["run", "sysbench", "--scale", "0.002", "--only", "workload=fileio,mariadb and platform=uml"],
        ),
        long(
            "20261122-220230-qf6",
            ["run", "netboot", "--scale", "0.01", "--only", "nic=e1000 and console=none"],
        ),
        long(
            "20261122-215543-e67",
            ["run", "upload", "--scale", "0.005", "--only", "workload=direct,share and platform=uml"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_no_key_is_missing(run: str, arguments: list[str], tmp_path: Path) -> None:
    verb, *others = arguments
    once = ["--warmup", "0", "--iterations", "1"] if verb != "boot" else []  # a machine starts only once
    result = CommandLine(tmp_path)(verb, *ONE_BLOCK, *once, *others, timeout=250)
    assert result.status == 0, result.stderr
    cells: Mapping[str, Any] = {cell["id"]: cell["trials"] for cell in result.document()["cells"]}
    compared = cells.keys() & recorded.KEYS[run].keys()
    assert compared == cells.keys()
    for cell in compared:
        (trial,) = cells[cell]
        found = set(recorded.keys(trial["attestation"]))
        assert named(recorded.KEYS[run][cell]) <= found, cell
