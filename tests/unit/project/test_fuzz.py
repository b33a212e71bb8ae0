"""Every fuzz target for a while, from the kept seeds; for ten minutes: `tools/fuzz TARGET`."""

import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz.parsers import fuzz, seeds_of, tried
from fuzz.targets import TARGETS

from tests.framework import CHECKOUT

_SECONDS = 10
RUST = sorted(file.stem for file in (CHECKOUT / "fuzz/fuzz_targets").glob("*.rs") if file.stem != "common")


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken(name: str) -> None:
    for seed in seeds_of(name):
        assert tried(TARGETS[name], seed) == ""


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_in_a_second(name: str) -> None:
    count, problem = fuzz(name, 0.3, seed=1)
    assert problem == ""
    assert count


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_in_ten_seconds(name: str) -> None:
    assert fuzz(name, _SECONDS, seed=2)[1] == ""


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUST)
def test_nothing_is_found_in_rust(name: str) -> None:
    if shutil.which("c++") is None:
        pytest.skip("libFuzzer is built with a compiler of C++")
    done = subprocess.run(
        [CHECKOUT / "tools/fuzz", name, str(_SECONDS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_target_has_seeds() -> None:
    assert {folder.name for folder in Path(CHECKOUT, "fuzz/seeds").iterdir()} == {*RUST, *TARGETS}
