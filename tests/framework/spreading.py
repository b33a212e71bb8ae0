"""A plugin of pytest-xdist: decides which tests stay together on one worker.

The tests of a file do, as they share machines. A few files take so long as a whole that the run would wait for one
worker; their tests share nothing, or only what belongs to one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]


def take_parameter(nodeid: str) -> str:
    """Return the first word of a test's parameters: tests of one architecture share its kernel and root."""
    file, _, rest = nodeid.partition("::")
    return f"{file}[{rest.partition('[')[2].rstrip(']').partition('-')[0]}"


def take_test(nodeid: str) -> str:
    """Return the test itself, which shares nothing with others."""
    return nodeid


SPREAD: Mapping[str, Callable[[str], str]] = {
    "tests/guest/test_architectures.py": take_parameter,
    "tests/guest/test_experiments.py": take_test,
    "tests/guest/test_generated_programs.py": take_test,
    "tests/guest/test_honest_programs.py": take_test,
    "tests/guest/test_own_machines.py": take_test,
    "tests/guest/test_powercut_guest.py": take_test,
    "tests/guest/test_programs.py": take_test,
    "tests/unit/powercut/test_gates.py": take_test,
    "tests/unit/project/test_documentation_runs.py": take_test,
    "tests/unit/stats/test_acceptance.py": take_test,
}


def scope_of(nodeid: str) -> str:
    """Return the name of what a test shares with others that stay on the same worker."""
    file = nodeid.partition("::")[0]
    take = SPREAD.get(file)
    return file if take is None else take(nodeid)


class SpreadScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Sends whole files to workers, and the tests of `SPREAD` apart from each other."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SpreadScheduling | None:
    """Return the scheduler that replaces `--dist loadfile`; None for other distributions."""
    if config.getoption("dist") != "loadfile":
        return None
    return SpreadScheduling(config, log)
