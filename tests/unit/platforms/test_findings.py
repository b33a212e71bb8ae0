"""What is remembered of platforms that have been tried, and until when."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from guestmark.core.architectures import find_host_architecture
from guestmark.core.cause import Cause
from guestmark.core.model import Cell
from guestmark.platforms.base import Machine, Unusable, Usable
from guestmark.platforms.probe import NO_FACTORS, probe_all


class Tried:
    """A platform that counts how often it is tried."""

    name = "tcg"

    def __init__(self) -> None:
        self.times = 0
        self.found: Usable | Unusable = Usable(1.0)

    def start(self, cell: Cell, deadline_s: float | None = None) -> AbstractContextManager[Machine]:
        raise AssertionError("it is only probed")

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        self.times += 1
        return self.found


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Tried()


def test_a_finding_holds_in_every_directory_also_where_a_program_is_missing(
    platform: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert probe_all([platform]) == {"tcg": Usable(1.0)}
        (tmp_path / name / "file").touch()  # which changes the directory
    assert platform.times == 1


def test_a_finding_does_not_hold_for_other_programs(
    platform: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_all([platform])
    program = tmp_path / find_host_architecture().emulator.name
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    probe_all([platform])
    assert platform.times == 2
    program.write_text("an update")
    probe_all([platform])
    assert platform.times == 3


@pytest.mark.parametrize("cause", [Cause.LATE, Cause.KILLED, Cause.NO_ROOM])
def test_what_was_late_or_killed_or_had_no_room_is_tried_again(platform: Tried, cause: Cause) -> None:
    platform.found = Unusable("in whatever words", "", cause)
    assert probe_all([platform]) == {"tcg": platform.found}
    platform.found = Usable(1.0)
    assert probe_all([platform]) == {"tcg": Usable(1.0)}


def test_what_failed_by_itself_is_remembered(platform: Tried) -> None:
    platform.found = Unusable("was not ready after: only words", "", Cause.ENDED)
    probe_all([platform])
    assert probe_all([platform]) == {"tcg": platform.found}
    assert platform.times == 1
