"""Which tests stay together on one worker of the test run."""

from pathlib import Path

from tests.framework import CHECKOUT
from tests.framework.spreading import SPREAD, take_parameter


def test_tests_of_one_architecture_stay_together() -> None:
    file = "tests/guest/test_architectures.py"
    assert take_parameter(f"{file}::test_a[arm64]") == take_parameter(f"{file}::test_b[arm64-SIGINT]")
    assert take_parameter(f"{file}::test_a[arm64]") != take_parameter(f"{file}::test_a[s390x]")
    assert take_parameter(f"{file}::test_c") == take_parameter(f"{file}::test_d")


def test_files_that_are_spread_share_nothing_in_a_module() -> None:
    for name, take in SPREAD.items():
        file = Path(CHECKOUT, name)
        assert file.is_file(), name
        if take is not take_parameter:
            assert 'scope="module"' not in file.read_text(), name
