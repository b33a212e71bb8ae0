"""The plan `programs`: real programs keep what their documentation promises, and lose what it does not."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from guestmark.plan import library
from tests.framework.command_line import CommandLine
from tests.framework.marks import long

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="a loop device of this host takes root"),
    pytest.mark.timeout(600),
]


def alone(name: str, target: Path) -> Path:
    """The plan with one of its workloads only."""
    text = library.read_builtin("programs")
    head, *workloads = re.split(r"(?m)^(?=\[workloads\.)", text)
    wanted = next(part for part in workloads if part.startswith(f"[workloads.{name}]"))
    wanted = re.split(r"(?m)^(?=# ---|\[\[)", wanted)[0]
    question = text[text.index("[[question]]") :]
    target.write_text(f"{head.split('# --- git')[0]}{wanted}\n{question}")
    return target


@pytest.mark.parametrize(
    ("name", "module", "word"),
    [
        ("lmdb-default", "lmdb", "proven"),
        ("sqlite-delete-full", "sqlite3", "lost"),
        long("sqlite-delete-extra", "sqlite3", "proven"),
        long("sqlite-wal-full", "sqlite3", "proven"),
        long("sqlite-wal-normal", "sqlite3", "lost"),
        long("gdbm-default", "dbm.gnu", "lost"),
        long("leveldb-true", "plyvel", "proven"),
        long("leveldb-false", "plyvel", "lost"),
        long("berkeleydb-sync", "bsddb3", "lost"),  # a page that is half written,
    ],
)
def test_the_word_of_a_program(
    guestmark: CommandLine, tmp_path: Path, name: str, module: str, word: str
) -> None:
    python = ["/usr/bin/python3", "-I", "-c", f"import {module}"]
    if not os.path.exists(python[0]) or subprocess.run(python, check=False, capture_output=True).returncode:
        pytest.skip(f"{module} is not installed")
    done = guestmark("run", alone(name, tmp_path / "plan.toml"), "--for", "90s", "--json", "-", timeout=280)
    (cell,) = done.document()["cells"]
    (trial,) = cell["trials"]
    assert trial["status"] == "ok", trial["reason"]
    found = trial["attestation"]["proof"]
    assert found["word"] == word, found
    if name == "sqlite-delete-full":
        why = found["explanation"]
        assert any(
            "the removal of rows.db-journal was never followed by a sync" in call for call in why["calls"]
        )
        assert why.get("losing", 0) == 0


def test_a_program_that_is_not_installed_is_left_out(guestmark: CommandLine, tmp_path: Path) -> None:
    plan = alone("mercurial", tmp_path / "plan.toml")
    plan.write_text(plan.read_text().replace("command -v hg", "command -v no-such-hg"))
    done = guestmark("run", plan, timeout=60)
    assert "it is not installed here (apt install mercurial)" in " ".join(
        f"{done.stdout} {done.stderr}".split()
    )
