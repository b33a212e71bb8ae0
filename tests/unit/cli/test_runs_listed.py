"""The list of runs: what calls a run is never cut, and a plan is called by its name."""

import itertools
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from guestmark.cli.do.runs import _show_runs
from guestmark.core.model import RunState
from guestmark.ledger.model import RunOverview
from tests.framework.command_line import CommandLine

_TEXTS = ("", "sleep 1", "ein langer Name " * 9, "流" * 50)


def _overview(number: int, label: str, title: str, labels: dict[str, str]) -> RunOverview:
    return RunOverview(
        f"20261128-1023{number:02}-{'abc'}", "upload", 1e9 + number, RunState.FAILED, 14, 10_000, 140_000, 13, label,
        title=title, labels=labels, given_name="before" * bool(labels), notes=("a note",) * bool(labels),
    )  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 132, 300])
@pytest.mark.parametrize("labels", [{}, {"commit": "0123456789ab", "night": "流" * 20}])
def test_ids_are_whole_at_every_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, labels: dict[str, str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    runs = [
        _overview(number, label, title, labels if number % 2 else {})
        for number, (label, title) in enumerate(itertools.product(_TEXTS, repeat=2))
    ]
    _show_runs(runs)
    shown = capsys.readouterr().out
    assert [run.id in shown for run in runs] == [True] * len(runs)
    assert len(shown.splitlines()) == len(runs) + 1 or width < 72
    assert shown.count("upload") >= len(runs) or width < 80


def test_a_plan_is_called_by_its_name_and_commands_by_themselves(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(
        'name = "plan"\ntitle = "Two sleeps"\nplatforms = ["host"]\n[workloads.new]\nkind = "exec"\n'
        'params.command = ["true"]\n'
    )
    for typed in ("exec -r 1 'sleep 0.01'", "exec -r 1 true 'sleep 0'", "run plan.toml --blocks 1"):
        words = shlex.split(typed.replace("true 'sleep 0'", "-- true --- sleep 0"))
        assert guestmark(words[0], "-q", *words[1:]).status == 0
    lines = guestmark("runs").stdout.splitlines()[1:]
    ends = ["sleep 0.01", "true, sleep 0", "plan: Two sleeps"]
    assert [line.rstrip().endswith(end) for line, end in zip(lines, ends, strict=True)] == [True] * 3, lines


def test_import_prints_the_ids(guestmark: CommandLine, tmp_path: Path) -> None:
    for typed in ("-n one true", "-n two true"):
        subprocess.run(
            ["hyperfine", "-N", "-r", "2", *typed.split(), "--export-json", f"{typed[3:6]}.json"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    done = guestmark("import", "one.json", "two.json")
    ids = done.stdout.split()
    assert len(ids) == 2
    assert [run["id"] for run in json.loads(guestmark("runs", "--json").stdout)] == ids
    assert guestmark("import", "one.json").stdout.split() == ids[:1]  # which is there already
