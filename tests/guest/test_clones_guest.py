"""Clones of real guests, and clones that are wrong on purpose."""

from pathlib import Path

import pytest

from guestmark.core.platform_spec import Layer
from guestmark.platforms.qemu.platform import Extras, QemuPlatform
from guestmark.platforms.qemu.restored import TEMPLATES
from guestmark.workloads.clones import Word, judge
from guestmark.workloads.clones.judge import ShownValues
from guestmark.workloads.clones.sources import (
    BOOT_ID,
    PATH,
    RESIDENTS,
    SOURCES,
    Source,
    collect_resident_files,
)
from tests.framework.cells import cell_of


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs have templates too."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def words(extras: Extras, *sources: Source) -> dict[str, Word]:
    """What two clones of one template show."""
    shown: dict[str, list[ShownValues]] = {source.name: [] for source in sources}
    cell = cell_of("tcg", "clones", {"start": "restored", "memory": "256M"})
    with TEMPLATES.share_in_block():
        for _ in range(2):
            with QemuPlatform(Layer("tcg")).start(cell, extras=extras) as machine:
                for source in sources:
                    done = machine.agent.exec(source.command, timeout_s=60, env={"PATH": PATH})
                    shown[source.name].append(ShownValues(tuple(done.stdout.decode().split())))
    return {source.name: judge.judge_source(source, shown[source.name]).word for source in sources}


def test_renewed_clones_are_distinct() -> None:
    names = {"boot id", "uuidgen", "getrandom()"}
    found = words(Extras(), *(source for source in SOURCES if source.name in names))
    assert set(found.values()) == {Word.DISTINCT}


@pytest.mark.long
def test_either_way_of_renewal_is_enough_and_neither_is_not() -> None:
    assert words(Extras(renews=False), BOOT_ID)[BOOT_ID.name] is Word.DISTINCT
    assert words(Extras(generation_id=False), BOOT_ID)[BOOT_ID.name] is Word.DISTINCT
    neither = Extras(renews=False, generation_id=False)
    # A clone's kernel may mix in what it has gathered by itself before it is asked: that is due every few seconds.
    assert any(words(neither, BOOT_ID)[BOOT_ID.name] is Word.IDENTICAL for _ in range(4))


@pytest.mark.long
def test_a_program_that_lived_before_goes_on_as_the_same_in_all() -> None:
    assert set(words(Extras(programs=collect_resident_files()), *RESIDENTS).values()) == {Word.IDENTICAL}
