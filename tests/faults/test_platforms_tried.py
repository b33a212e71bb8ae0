"""While platforms are tried: Ctrl-C is answered at once, and a busy machine is not taken for one that cannot."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from guestmark.cli.do.doctor import examine_host
from guestmark.platforms import probe
from tests.framework.command_line import CommandLine
from tests.framework.processes import wait_until

_ANSWERED_S, _ENDED_S = 1.5, 5.0  # on a busy machine


@pytest.mark.parametrize(
    "typed",
    [
        ("doctor", "--again"),
        ("exec", "--on", "tcg,uml", "--", "true"),
        ("exec", "--on", "tcg/kvm", "--", "true"),
        ("tour", "--on", "tcg,uml"),
        ("run", "memory-backing"),
    ],
)
def test_ctrl_c_is_answered_at_once(guestmark: CommandLine, typed: tuple[str, ...]) -> None:
    with guestmark.running(*typed) as process:
        wait_until(lambda: bool(guestmark.hypervisors()), 30)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        said, took = b"", None
        assert process.stderr is not None
        while line := process.stderr.readline():
            said += line
            if took is None and b"interrupted; nothing was measured" in line:
                took = time.monotonic() - begun
        assert process.wait(_ENDED_S) == 130
        assert took is not None, said
        assert took < _ANSWERED_S
        assert time.monotonic() - begun < _ENDED_S
    wait_until(lambda: not guestmark.hypervisors(), 10)
    wait_until(lambda: not os.listdir(guestmark.scratch), 10)


def test_a_load_is_seen_at_once_and_not_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be too new for the mean of the last minute."""
    with _loaded(2 * len(os.sched_getaffinity(0)) + 2):
        wait_until(lambda: probe.measure_overload() is not None, 10)
    monkeypatch.setattr(probe, "_read_load", lambda: (0.5, 1.0))
    assert probe.measure_overload() is None


@pytest.mark.long
def test_nothing_usable_is_called_unusable_under_a_load_of_eight(
    guestmark: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in guestmark.environment.items():
        monkeypatch.setenv(name, value)
    with _loaded(8):
        began = time.monotonic()
        busy = {one["name"]: one for one in examine_host(again=True)["platforms"]}
        assert time.monotonic() - began < probe.BUSY_IN_ALL_S + 10
    quiet = {one["name"]: one for one in examine_host(again=True, nested=True)["platforms"]}
    assert not [one for name, one in busy.items() if one["usable"] is False and quiet[name]["usable"]]
    assert {"tcg", "uml"} <= {name for name, one in quiet.items() if one["usable"]}
    assert all("the machine is busy" in one["reason"] for one in busy.values() if one["usable"] is None)


@contextlib.contextmanager
def _loaded(count: int) -> Iterator[None]:
    """That many programs that do nothing but use a processor."""
    with contextlib.ExitStack() as ending:
        for _ in range(count):
            program = ending.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            ending.callback(program.kill)
        yield


def test_the_doctor_s_answer_is_one_screen_with_the_platforms_last(guestmark: CommandLine) -> None:
    report = guestmark("doctor", "--json", timeout=120).document()
    terminal = f"stty cols 80 rows 24; {shlex.join([sys.executable, '-m', 'guestmark', 'doctor'])}"
    done = subprocess.run(
        ["script", "-qec", terminal, "/dev/null"], capture_output=True, text=True, env=guestmark.environment,
        cwd=guestmark.folder, stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in done.stdout.splitlines()]
    answer = [line for line in lines if not line.startswith("guestmark: ")]
    assert len(answer) <= 24
    assert all(len(line) <= 80 for line in answer)
    rows = [line.split()[:2] for line in answer]
    words = {True: "usable", False: "unusable", None: "unknown"}
    expected = [[one["name"], words[one["usable"]]] for one in report["platforms"]]
    assert sorted(row for row in rows if row[1:] and row[1] in words.values()) == sorted(expected)
    assert "qemu-img" not in done.stdout


@pytest.mark.long
def test_the_doctor_s_details_name_programs(guestmark: CommandLine) -> None:
    assert "qemu-img" in guestmark("doctor", "--details", timeout=120).stdout
