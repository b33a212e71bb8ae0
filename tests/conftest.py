"""What every test may ask for, and how the programs it starts hear signals."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from guestmark.core import single_threaded_blas  # noqa: F401 (before a test imports numpy)
from tests.framework.caches import TriedPlatforms
from tests.framework.command_line import CommandLine

pytest_plugins = ["tests.framework.long_tests", "tests.framework.spreading"]

# A busy machine makes no test wrong: what an example takes is not judged.
settings.register_profile("guestmark", deadline=None)
settings.load_profile("guestmark")

# Programs started by tests hear signals as at a terminal, also under nohup and in the background of a script. There
# signals are ignored, which every child would inherit; a handler that does nothing ends with exec.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# Tests measure many things at once. Those of exclusive use have a lock of their own.
os.environ["GUESTMARK_LOCK"] = "none"
os.environ["GUESTMARK_PAGER"] = ""  # on a terminal of a test nobody presses a key

# The files that take longest, and then the folders: what starts last should be over soon. By the durations that ./test
# prints; a file that is missing here is only started later.
_FIRST = (
    "faults/test_setup_clean_root.py",  # these by `./test --long`
    "unit/project/test_documentation_runs.py",
    "guest/test_architectures.py",
    "faults/test_fleet.py",
    "guest/test_powercut_guest.py",
    "guest/test_nested.py",
    "faults/test_exec_host.py",
    "faults/test_guest_faults.py",
    "faults/test_plan_faults.py",
    "guest/test_workloads_disk.py",
    "unit/stats/test_acceptance.py",
    "faults/test_ledger_faults.py",
    "faults/test_conformance.py",
    "guest/test_sandboxes.py",
    "guest/test_confined.py",
    "unit/cli/test_hostile.py",
)
_THEN = ("guest", "faults", "browser", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files by `_FIRST` and `_THEN`; the tests of a file keep their order."""
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(here).as_posix()
        if name in _FIRST:
            return _FIRST.index(name)
        return len(_FIRST) + _THEN.index(name.partition("/")[0])

    items.sort(key=rank)


@pytest.fixture
def guestmark(tmp_path: Path) -> CommandLine:
    """The command line with a ledger, a cache and a scratch directory that only this test has."""
    return CommandLine.with_scratch(tmp_path)


@pytest.fixture(scope="session")
def tried_platforms(tmp_path_factory: pytest.TempPathFactory) -> TriedPlatforms:
    """What is known of this host's platforms, shared by all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tried"
    folder.mkdir(exist_ok=True)
    return TriedPlatforms(folder)


@pytest.fixture
def guests_known(guestmark: CommandLine, tried_platforms: TriedPlatforms) -> None:
    """The command line does not try again whether uml and tcg can be used."""
    guestmark.knows(tried_platforms, "uml", "tcg")


@pytest.fixture
def nested_known(guestmark: CommandLine, tried_platforms: TriedPlatforms) -> None:
    """The command line does not try again whether tcg/uml can be used."""
    guestmark.knows(tried_platforms, "tcg/uml")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file for commands in guests to read, so that their running can be seen from outside."""
    file = tmp_path / "marker"
    file.touch()
    return file
