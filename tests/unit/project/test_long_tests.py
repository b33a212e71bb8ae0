"""Long tests are picked by need, and a run of tests says what it left and which limits are close."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.framework import costs, picking
from tests.framework.picking import PARTS, Change, Remembered

ROOT = Path(__file__).resolve().parents[3]
# Three quarters of 20 minutes, on two processors.
ROOM_S = 0.75 * 20 * 60 * 2
OTHERS = ("", "disks", "powercut", "engine", "report", "capture")


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", "90"),
        ("90s", "90"),
        ("20m", "1200"),
        ("2h", "7200"),
        ("", ""),
        ("20 m", ""),
        ("m", ""),
        ("1d", ""),
    ],
)
def test_a_time_is_seconds_in_the_launchers_shell(time: str, seconds: str) -> None:
    """In /bin/sh itself: another shell evaluates what this one refuses."""
    command = '. "$root/tools/setup.sh"; seconds_of "$1"'
    told = subprocess.run(
        ["/bin/sh", "-c", command, "sh", time],
        env=os.environ | {"root": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert told.stdout.decode().strip() == seconds


def test_packages_are_told_from_paths() -> None:
    paths = [
        "python/guestmark/workloads/netboot/nested.py", "python/guestmark/disks/stack.py", "crates/agent/src/main.rs",
        "crates/capture/src/lib.rs", "bench/statistics/shipped.py", "docs/index.md", "", "python/guestmark/library.py",
    ]  # fmt: skip
    assert picking.touched_packages(paths) == {
        "guestmark.workloads.netboot": 1, "guestmark.disks": 1, "guestmark.agent": 1, "guestmark.capture": 1,
        "bench.statistics": 1,
    }  # fmt: skip


def test_a_file_is_near_by_import_or_by_name(tmp_path: Path) -> None:
    by_import, by_name, far = (tmp_path / f"test_{name}.py" for name in ("one", "netboot_faults", "other"))
    by_import.write_text("def test() -> None:\n    from guestmark.workloads.netboot import inside\n")
    by_name.write_text("import os\n")
    far.write_text("import guestmark.workloads.netboots\n")
    touched = {"guestmark.workloads.netboot": 3}
    assert [picking.nearness(file, touched) for file in (by_import, by_name, far)] == [3, 3, 0]


def files(folder: Path, count: int) -> list[tuple[str, Path]]:
    made = []
    for number in range(count):
        file = folder / f"test_{number}.py"
        file.write_text("")
        made += [(f"{file.name}::test_{each}", file) for each in "ab"]
    return made


def test_what_was_touched_comes_first_then_what_has_waited(tmp_path: Path) -> None:
    tests = files(tmp_path, 5)
    tests[4][1].write_text("import guestmark.disks.stack")
    remembered = {name: Remembered(float(number), 1.0, 1.0) for number, (name, _) in enumerate(tests)}
    order = picking.order_of(tests, Change({"guestmark.disks": 1}, "abc"), remembered, ROOM_S)
    assert order[:2] == ["test_2.py::test_a", "test_2.py::test_b"]
    assert order[2:] == [name for name, _ in tests if not name.startswith("test_2.py")]


def test_in_six_changes_each_has_run(tmp_path: Path) -> None:
    """A sixth of the tests fits into each change; what is touched is another file each time."""
    tests = files(tmp_path, 60)
    remembered: dict[str, Remembered] = {}
    for number in range(PARTS):
        order = picking.order_of(tests, Change({}, f"commit {number}", number), remembered, ROOM_S)
        for name in order[: len(tests) // PARTS]:
            remembered[name] = Remembered(number + 1.0, 1.0, 1.0)
    assert set(remembered) == {name for name, _ in tests}


def test_what_failed_comes_before_what_held(tmp_path: Path) -> None:
    tests = files(tmp_path, 5)
    remembered = {name: Remembered(float(number + 1), 1.0, 1.0) for number, (name, _) in enumerate(tests)}
    remembered["test_3.py::test_b"] = Remembered(0.0, 1.0, 1.0)
    assert picking.order_of(tests, Change({}, "abc"), remembered, ROOM_S)[:2] == [
        "test_3.py::test_b",
        "test_3.py::test_a",
    ]


def all_long_tests() -> list[tuple[str, Path]]:
    """As many tests as each real file has; what they are called decides nothing but what runs together."""
    return [
        (f"{file}::test_it[{number}]", ROOT / file)
        for file, cost in costs.read_table().items()
        for number in range(cost.tests)
    ]


def picked(change: Change, remembered: dict[str, Remembered]) -> list[str]:
    """What two processors reach with `--for 20m`, where everything takes as long as it did."""
    left_s, reached = ROOM_S, []
    for name in picking.order_of(all_long_tests(), change, remembered, ROOM_S):
        left_s -= costs.published_s(name)
        if left_s >= 0:
            reached.append(name)
    return reached


def test_six_changes_run_everything_on_a_machine_that_remembers_nothing() -> None:
    """By the real files, with the real import graph, whatever the changes touch."""
    touched = picking.touched_packages(
        path.relative_to(ROOT).as_posix() for path in ROOT.rglob("python/**/*.py")
    )
    for packages in ({}, touched):
        missed = {name for name, _ in all_long_tests()}
        for number in range(71, 71 + PARTS):
            missed -= set(picked(Change(packages, f"commit {number}", number), {}))
        assert missed == set()


@pytest.mark.parametrize(
    ("changed", "seen_by"),
    [
        # A parameter of the nested order that is renamed on one side of it.
        ("python/guestmark/workloads/netboot/nested.py", "tests/guest/test_netboot.py"),
        # A type that s390x lacks.
        ("crates/agent/src/main.rs", "tests/guest/test_architectures.py"),
        # A rule of claims that errs twice as often.
        ("python/guestmark/stats/family.py", "tests/unit/stats/test_acceptance.py"),
    ],
)
def test_a_planted_fault_meets_its_test_within_six_changes(changed: str, seen_by: str) -> None:
    """The change itself, then five that touch other things; the machine remembers what it ran, or nothing."""
    assert picking.nearness(ROOT / seen_by, picking.touched_packages([changed])) > 0
    for keeps in (True, False):
        remembered: dict[str, Remembered] = {}
        seen: set[str] = set()
        for number in range(PARTS):
            paths = [changed if number == 0 else f"python/guestmark/{OTHERS[number]}/module.py"]
            change = Change(picking.touched_packages(paths), f"commit {number}", number)
            reached = picked(change, remembered if keeps else {})
            seen |= set(reached)
            remembered |= {
                name: Remembered(number + 1.0, costs.published_s(name), costs.published_s(name))
                for name in reached
            }
        assert {name for name, _ in all_long_tests() if name.startswith(seen_by)} <= seen


def test_machines_without_a_memory_take_different_tests(tmp_path: Path) -> None:
    tests = files(tmp_path, 60)
    first = {picking.order_of(tests, Change({}, f"commit {number}"), {}, ROOM_S)[0] for number in range(20)}
    assert len(first) > 5


def test_a_test_begins_only_if_it_fits() -> None:
    remembered = {"known": Remembered(0.0, 20.0, 5.0)}
    assert picking.fits("known", 30.0, remembered)
    assert not picking.fits("known", 10.0, remembered)
    assert not picking.fits("unknown", 10.0, remembered)
    assert picking.fits("unknown", 50.0, remembered)


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"a": 1}', '{"a": ["x", 2]}'])
def test_a_damaged_memory_is_none(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "memory").write_text(damaged)
    assert picking.read_memory(tmp_path / "memory") == {}


TESTS = """
import subprocess, time
from pathlib import Path
import pytest

@pytest.mark.long
@pytest.mark.timeout(20)
def test_close():
    time.sleep(6)

@pytest.mark.long
def test_leaves_a_process():
    subprocess.Popen(["setsid", "sleep", "40"])

@pytest.mark.long
def test_leaves_a_directory():
    Path("/var/tmp/guestmark-tcg-0123456789ab").mkdir(exist_ok=True)

@pytest.mark.long
def test_leaves_nothing():
    with subprocess.Popen(["sleep", "60"]) as process:
        process.kill()
"""


def run_tests(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_these.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'python'}", "XDG_CACHE_HOME": str(folder)}
    for name in ("GUESTMARK_TESTS", "GUESTMARK_TESTS_UNTIL", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.framework.long_tests",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(
        [*command, *options, "test_these.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_what_is_left_and_what_is_close_is_said_with_the_test(tmp_path: Path) -> None:
    planted = Path("/var/tmp/guestmark-tcg-0123456789ab")
    try:
        done = run_tests(tmp_path, "--nothing-left")
    finally:
        planted.rmdir()
    assert done.returncode == 1, done.stdout
    left = [line for line in done.stdout.splitlines() if line.startswith("left behind: ")]
    for line in left:
        if "sleep 40" in line:  # by now nobody's, and another run of tests to the next one
            os.kill(int(line.split()[3]), 9)
    process, directory = (line for line in left if "test_these.py" in line)
    assert "sleep 40" in process
    assert "test_leaves_a_process" in process
    assert str(planted) in directory
    assert "test_leaves_a_directory" in directory
    assert "test_these.py::test_close: 6 s of 20 s" in done.stdout


def test_no_time_picks_nothing_and_says_so(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "--within", "0")
    assert done.returncode == 0, done.stdout
    assert "picked within 0 s: 0 tests (none)" in done.stdout
    assert "not reached: 4" in done.stdout


def test_what_there_is_no_time_to_run_again_is_said_by_name(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "--until", "0", "-k", "close")
    assert done.returncode == 0, done.stdout
    assert "not run again, as the time is over: test_these.py::test_close" in done.stdout.splitlines()


@pytest.mark.parametrize(("checked", "long"), [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_both_parts_of_continuous_integration_decide_and_are_told_last(
    tmp_path: Path, checked: int, long: int
) -> None:
    """`.ci/run` itself, beside a `./test` that answers at once."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".setup/checks").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    stand_in = tmp_path / "test"
    stand_in.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --long ]; then part=picked status={long}; else part=whole status={checked}; fi\n'
        'printf "noise\\n%s within\\nfailed beside the others, passed alone: %s\\n" "$part" "$part" '
        ">.setup/checks/pytest.log\n"
        "exit $status\n"
    )
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["sh", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (checked or long), done.stderr
    took = re.compile(r"\d+ s")  # 1 s on a busy machine
    assert [took.sub("0 s", line) for line in done.stdout.splitlines()[-5:]] == [
        "failed beside the others, passed alone: whole",
        f"./test: status {checked}, 0 s",
        "picked within",
        "failed beside the others, passed alone: picked",
        f"./test --long --for 1080: status {long}, 0 s",
    ]
