"""A plugin of pytest: picks long tests that fit into a time, and reports time limits that are close and leftovers."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.appliance.paths import locate_cache
from guestmark.core import procfs
from guestmark.engine import leftovers as lost
from tests.framework import picking
from tests.framework.marks import IS_THOROUGH
from tests.storm import leavings

_MARK = "GUESTMARK_TESTS"  # in the environment of whatever a run of the tests starts
_UNTIL = "GUESTMARK_TESTS_UNTIL"
_NOT_REACHED = "not picked: the time is over"
# ./test searches the output for this text.
NOT_AGAIN = "not run again, as the time is over: "
_TIMES = 4  # a limit is at least this many times what the test takes alone
_ENDING_S = 10.0
_OURS = (
    "exec(eval(sys.stdin.readline()))",
    "-m tests.framework.",
)  # execnet's processes, and helpers of the tests
_KEEPER = "guestmark-agent keep "
_EXPRESSIONS = "guestmark/core/regex.py"  # a process that searches with expressions of users
_NETNS = "/run/netns"  # iproute2 mounts it with the first namespace that has a name, and keeps it
_COARSE_S = 0.01  # granularity of the clock for times of files
_MEMORY = Path("tests", "long.json")
_PROCESSOR_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_USED_BEFORE = pytest.StashKey[float]()
_COUNTING = pytest.StashKey["ProcessorGroup"]()


def memory_file() -> Path:
    """Return the path of this machine's record of the last runs of tests."""
    return locate_cache() / _MEMORY


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for long tests."""
    parser.addoption("--nothing-left", action="store_true", help="fail if a test leaves something behind")
    parser.addoption("--within", type=float, metavar="SECONDS", help="take long tests for this long, by need")
    parser.addoption(
        "--count-processors",
        action="store_true",
        help="remember what tests use of processors (root, groups of v1)",
    )
    parser.addoption("--until", type=float, metavar="EPOCH", help="run again what fits before this moment")


def pytest_configure(config: pytest.Config) -> None:
    """Mark everything that this run starts; workers get the mark and the end of the time by environment variables."""
    if os.environ.setdefault(_MARK, secrets.token_hex(8)) and not hasattr(config, "workerinput"):
        if (within := config.getoption("--within")) is not None:
            os.environ[_UNTIL] = repr(time.time() + within)
        elif (until := config.getoption("--until")) is not None:
            os.environ[_UNTIL] = repr(until)
        config.pluginmanager.register(_Run(config), "guestmark-long-tests")

    if config.getoption("--count-processors"):
        config.stash[_COUNTING] = ProcessorGroup.join()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the control group in which processor time was counted."""
    if counting := config.stash.get(_COUNTING, None):
        counting.leave()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out thorough variants unless they are asked for; sort the others by need if there is a time for them."""
    if not IS_THOROUGH:
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
    if config.getoption("--within") is None:
        return
    remembered = picking.read_memory(memory_file())
    tests = [(item.nodeid, item.path) for item in items]
    room_s = config.getoption("--within") * len(os.sched_getaffinity(0))
    ordered = picking.order_of(tests, picking.latest_change(), remembered, room_s)
    order = {name: rank for rank, name in enumerate(ordered)}
    items.sort(key=lambda item: order[item.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that would not end in time."""
    if counting := item.config.stash.get(_COUNTING, None):
        item.stash[_USED_BEFORE] = counting.used_s()
    if until := os.environ.get(_UNTIL):
        remembered = picking.read_memory(memory_file())
        if not picking.fits(item.nodeid, float(until) - time.time(), remembered):
            pytest.skip(_NOT_REACHED)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add a test's time limit and processor time to its report, for the process that collects reports."""
    outcome = yield
    if call.when == "teardown" and _USED_BEFORE in item.stash:
        used = ("processor", item.config.stash[_COUNTING].used_s() - item.stash[_USED_BEFORE])
        outcome.get_result().user_properties.append(used)  # type: ignore[attr-defined]
    marker = item.get_closest_marker("timeout")
    given = marker.args[0] if marker and marker.args else item.config.getini("timeout")
    with contextlib.suppress(TypeError, ValueError):
        outcome.get_result().user_properties.append(("limit", float(given)))  # type: ignore[attr-defined]


class ProcessorGroup:
    """A control group of this process and everything that it starts, because guests may not be its descendants."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def join(cls) -> ProcessorGroup:
        """Create a group for this process, and join it."""
        made = cls(_PROCESSOR_GROUPS / f"tests-{os.getpid()}")
        made._path.mkdir()
        made._move(made._path)
        return made

    def used_s(self) -> float:
        """Return the processor seconds of everything that was ever in the group."""
        return int((self._path / "cpuacct.usage").read_text()) / 1e9

    def leave(self) -> None:
        """Leave the group, and remove it if it is empty."""
        self._move(_PROCESSOR_GROUPS)
        with contextlib.suppress(OSError):
            self._path.rmdir()

    @staticmethod
    def _move(path: Path) -> None:
        (path / "cgroup.procs").write_text(str(os.getpid()))


class _Run:
    """One whole run of tests, in the process that collects all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._within = config.getoption("--within")
        self._strict = config.getoption("--nothing-left")
        self._alone = not config.getoption("numprocesses", None)
        self._mounts = _mounted()
        self._directories = set(leavings.nobodys())
        self._seconds: dict[str, float] = {}
        self._limits: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._long: set[str] = set()
        self._failed: set[str] = set()
        self._running: list[tuple[float, float, str]] = []
        self._picked: dict[str, int] = {}
        self._not_reached: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to the test's duration and results."""
        name = report.nodeid
        if report.skipped and isinstance(report.longrepr, tuple) and _NOT_REACHED in report.longrepr[2]:
            self._not_reached.append(name)
            return
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.when == "call" and "long" in report.keywords:
            self._long.add(name)
        if report.failed:
            self._failed.add(name)
            self._say_failed(report)
        for key, value in report.user_properties:
            if key == "limit" and isinstance(value, float):
                self._limits[name] = value
            if key == "processor" and isinstance(value, float):
                self._used[name] = value
        self._running.append((report.start, report.stop, name))
        if report.when == "call":
            file = name.partition("::")[0]
            self._picked[file] = self._picked.get(file, 0) + 1

    def _say_failed(self, report: pytest.TestReport) -> None:
        """Print which test failed, and why, at once, as the run may continue for an hour."""
        reporter = self._plugins.get_plugin("terminalreporter")
        if reporter is None:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message.partition("\n")[0] if crash else "see below"
        reporter.ensure_newline()
        reporter.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s): {why}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record when each long test passed; with --nothing-left, fail a run that left something behind."""
        if self._long:
            file = memory_file()
            now = {
                name: picking.Remembered(
                    0.0 if name in self._failed else time.time(),
                    self._seconds[name],
                    self._used.get(name, 0.0),
                )
                for name in self._long
            }
            picking.write_memory(file, picking.read_memory(file) | now)
        self._left = self._find_left()
        if self._left and self._strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print which tests were picked, which time limits are close, and what was left behind."""
        write = terminalreporter.write_line
        if self._within is not None:
            each = ", ".join(f"{name} {count}" for name, count in self._picked.items())
            write(
                f"picked within {self._within:.0f} s: {sum(self._picked.values())} tests ({each or 'none'})"
            )
            write(f"not reached: {len(self._not_reached)}; they come first next time")
        else:
            for name in self._not_reached:
                write(f"{NOT_AGAIN}{name}")
        close = [
            f"{name}: {took:.0f} s of {self._limits[name]:.0f} s"
            for name, took in self._seconds.items()
            if took > 5 and took * _TIMES > self._limits.get(name, took * _TIMES)
        ]
        if close and self._alone:
            write("their limit is less than four times what they took alone:")
            for line in close:
                write(f"  {line}")
        for line in self._left:
            write(f"left behind: {line}", red=True)

    def _find_left(self) -> list[str]:
        """Return what exists now and did not at the beginning, after giving things that are about to end a moment."""
        deadline = time.monotonic() + _ENDING_S
        while (found := list(self._look())) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def _look(self) -> Iterator[str]:
        mark = f"{_MARK}={os.environ[_MARK]}".encode()
        own = {os.getpid(), *_ancestors(os.getpid())}
        orphans = {orphan.pid for orphan in lost.find_orphans()}
        for pid, command in leavings.processes(mark, {}):
            # These belong to a process of this run and end with it.
            kept = _KEEPER in command and pid not in orphans
            kept |= _EXPRESSIONS in command and int(_field(pid, "PPid:") or 0) in own
            if pid not in own and not kept and not any(word in command for word in _OURS):
                yield f"process {pid} ({command.strip()}), by {_test_of_process(pid)}"
        if _is_another_run_active(mark):
            return  # mounts and directories have no mark, so they may be from that run
        for place in sorted(_mounted() - self._mounts - {_NETNS}):
            yield f"a mount at {place}"
        for path in sorted(set(leavings.nobodys()) - self._directories):
            yield f"{path}, by {self._test_at(path)}"

    def _test_at(self, path: Path) -> str:
        """Return the names of the tests that ran when a directory was last changed."""
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            names = [name for begin, end, name in self._running if begin - _COARSE_S <= changed <= end]
            return " or ".join(dict.fromkeys(names)) or "an unknown test"
        return "an unknown test"


def _is_another_run_active(own: bytes) -> bool:
    """Return whether tests run on this machine that belong to neither this run nor one that started it."""
    family = {own.decode(), *(word for pid in _ancestors(os.getpid()) for word in _marks(pid))}
    workers = (pid for pid in procfs.list_processes() if _OURS[0] in " ".join(procfs.read_words(pid)))
    return any(word not in family for pid in workers for word in _marks(pid))


def _marks(pid: int) -> Iterator[str]:
    for word in procfs.read_text(procfs.PROC / str(pid) / "environ").split("\0"):
        if word.startswith(f"{_MARK}="):
            yield word


def _mounted() -> set[str]:
    lines = procfs.read_text(Path("/proc/self/mountinfo")).splitlines()
    return {line.split(" ")[4] for line in lines}


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(_field(pid, "PPid:") or 0)
        yield pid


def _field(pid: int, name: str) -> str:
    for line in procfs.read_text(procfs.PROC / str(pid) / "status").splitlines():
        if line.startswith(name):
            return line.split()[1]
    return ""


def _test_of_process(pid: int) -> str:
    """Return the name of the test that started a process, from the process's environment."""
    for word in procfs.read_text(procfs.PROC / str(pid) / "environ").split("\0"):
        if word.startswith("PYTEST_CURRENT_TEST="):
            return word.partition("=")[2]
    return "an unknown test"
