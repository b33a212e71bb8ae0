"""What set-up trusts: lock files that name hashes, and nothing but names, versions and hashes."""

import itertools
import re
import tomllib

import pytest

from tests.framework import CHECKOUT

LOCKS = tuple(sorted(lock.name for lock in CHECKOUT.glob("requirements*.txt")))


@pytest.mark.parametrize("name", LOCKS)
def test_python_lock_has_hashes_and_no_addresses(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    entries = re.split(r"\n(?=[a-z])", text.strip())
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==\S+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_python_locks_hold_what_the_project_names() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    for lock, wanted in (
        ("requirements.txt", project["project"]["dependencies"]),
        ("requirements-fleet.txt", project["project"]["optional-dependencies"]["fleet"]),
        ("requirements-dev.txt", project["dependency-groups"]["dev"]),
        *(
            (f"requirements-{extra}.txt", project["project"]["optional-dependencies"][extra])
            for extra in ("history", "frames")
        ),
    ):
        locked = set(re.findall(r"^([a-z0-9.-]+)==", (CHECKOUT / lock).read_text(), re.MULTILINE))
        for requirement in wanted:
            name = re.split(r"[<>=!~; \[]", requirement)[0].lower().replace(".", "-").replace("_", "-")
            assert name in locked, f"{lock} lacks {name}: run tools/lock"


def test_locks_agree_where_they_overlap() -> None:
    versions = [
        dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (CHECKOUT / lock).read_text(), re.MULTILINE))
        for lock in LOCKS
    ]
    for one, other in itertools.combinations(versions, 2):
        for name in one.keys() & other.keys():
            assert one[name] == other[name], name
