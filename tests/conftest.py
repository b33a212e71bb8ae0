"""What every test may ask for, and how the programs it starts hear signals."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from guestmark.core import single_threaded_blas  # noqa: F401 (before a test imports numpy)
from tests.framework import costs
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
# Version managers put scripts in front of python3 that take longer than most of what tests start with it.
os.environ["PATH"] = os.pathsep.join(
    folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).name != "shims"
)

# The files that take longest in ./test, by the durations that it prints, and then the folders: what starts last should
# be over soon. A file that is missing here is only started later. Before them are those whose long tests take longest.
_FIRST = (
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
_LONG_S = 20.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts files by what their long tests take, where these run, then by `_FIRST` and `_THEN`.

    The tests of a file keep their order.
    """
    here = Path(__file__).parent
    with_long = "not long" not in config.getoption("markexpr")

    def rank(item: pytest.Item) -> tuple[float, int]:
        name = item.path.relative_to(here).as_posix()
        takes_s = costs.file_s(f"tests/{name}") if with_long else 0.0
        longest = -takes_s if takes_s > _LONG_S else 0.0
        if name in _FIRST:
            return longest, _FIRST.index(name)
        return longest, len(_FIRST) + _THEN.index(name.partition("/")[0])

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
