"""What set-up trusts: a lock that names hashes, and nothing but names, versions, hashes and groups."""

import re
import subprocess
import tomllib
from collections.abc import Iterable

import pytest

from tests.framework import CHECKOUT

LOCK = CHECKOUT / "requirements.txt"
GROUPS = ("run", "dev", "fleet", "history", "frames")


def locked(*groups: str) -> list[str]:
    """The entries that set-up installs for these groups."""
    done = subprocess.run([CHECKOUT / "tools/locked", *groups], capture_output=True, text=True, check=True)
    return re.split(r"\n(?=[a-z])", done.stdout.strip())


def names_of(entries: Iterable[str]) -> set[str]:
    return {entry.partition("==")[0] for entry in entries}


def test_the_lock_has_hashes_and_no_addresses() -> None:
    text = LOCK.read_text()
    assert "://" not in text
    assert "--index-url" not in text
    for entry in locked(*GROUPS):
        first, *hashes, groups = entry.splitlines()
        assert re.match(r"[a-z0-9.-]+==\S+", first), first
        assert hashes, first
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), first
        assert set(groups.removeprefix("    # ").split()) <= set(GROUPS), groups


def test_every_entry_is_of_a_group() -> None:
    pinned = re.findall(r"^[a-z0-9.-]+==.*$", LOCK.read_text(), re.MULTILINE)
    assert [entry.splitlines()[0] for entry in locked(*GROUPS)] == pinned
    assert len(pinned) == len(set(pinned))
    assert "pytest" not in names_of(locked("run"))
    assert "pytest" in names_of(locked("dev"))
    assert names_of(locked("frames")) == {"polars", "polars-runtime-32"}


@pytest.mark.parametrize("group", GROUPS)
def test_the_lock_holds_what_the_project_names(group: str) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    groups = {
        "run": project["project"]["dependencies"],
        **project["dependency-groups"],
        **project["project"]["optional-dependencies"],
    }
    # An environment with any other group has that of the program, too.
    installed = names_of([*locked("run"), *locked(group)])
    for requirement in groups[group]:
        name = re.split(r"[<>=!~; \[]", requirement)[0].lower().replace(".", "-").replace("_", "-")
        assert name in installed, f"requirements.txt lacks {name} for {group}: run tools/lock"
