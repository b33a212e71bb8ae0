"""Each option of hyperfine, with its meaning there; lists of options and tables are those of hyperfine itself."""

import csv
import io
import json
import re
import subprocess
from pathlib import Path

import pytest

from guestmark.cli.parser import build_command, collect_known_options
from guestmark.report.export_format import Format
from tests.framework.command_line import CommandLine

# Of versions that Debian does not have yet.
NEWER = (
    "--reference", "--reference-name", "--conclude", "-C", "--sort", "--input", "--min-benchmarking-time",
)  # fmt: skip


def exported(guestmark: CommandLine, *arguments: str) -> list[dict[str, object]]:
    done = guestmark("exec", "-q", "--export-json", "-", *arguments)
    assert done.status == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)["results"]
    return found


def test_every_option_is_known() -> None:
    said = subprocess.run(["hyperfine", "--help"], capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^ {4,8}(-[^ <].*)$", said, re.M)
    theirs = {name for line in lines for name in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", line)}
    assert {"-S", "-N", "--style", "--export-orgmode", "-V"} <= theirs
    known = collect_known_options(build_command("exec"))
    assert not {name for name in (*theirs, *NEWER) if not known.is_option(name)}


TABLES = {
    "csv": Format.HYPERFINE_CSV,
    "markdown": Format.HYPERFINE_MARKDOWN,
    "asciidoc": Format.HYPERFINE_ASCIIDOC,
    "orgmode": Format.HYPERFINE_ORGMODE,
}


@pytest.mark.parametrize("typed", [("sleep 0.011", "sleep 0.02 {x}", "-L", "x", "0,0.01"), ("sleep 1",)])
def test_the_tables_are_its_own(guestmark: CommandLine, tmp_path: Path, typed: tuple[str, ...]) -> None:
    """Its results come in, and are written as it has written them itself."""
    files = {name: tmp_path / f"theirs.{name}" for name in ("json", *TABLES)}
    exports = [word for name, file in files.items() for word in (f"--export-{name}", str(file))]
    subprocess.run(["hyperfine", "-N", "-r", "3", *typed, *exports], check=True, capture_output=True)
    assert guestmark("import", str(files["json"])).status == 0
    for name, form in TABLES.items():
        ours = guestmark("export", "last", "-f", form).stdout
        theirs = files[name].read_text()
        if name == "csv":
            _same_figures(ours, theirs)
        else:
            assert ours == theirs


def _same_figures(ours: str, theirs: str) -> None:
    (head, *mine), (their_head, *others) = (list(csv.reader(io.StringIO(text))) for text in (ours, theirs))
    assert head == their_head
    for row, other in zip(mine, others, strict=True):
        assert row[0] == other[0]
        for name, cell, theirs_cell in zip(head[1:], row[1:], other[1:], strict=True):
            if name not in {"user", "system"}:  # which an import does not keep
                assert float(cell) == pytest.approx(float(theirs_cell))


@pytest.mark.parametrize("form", TABLES)
def test_each_export_is_a_file(guestmark: CommandLine, tmp_path: Path, form: str) -> None:
    done = guestmark("exec", "-q", "-r", "2", f"--export-{form}", "out", "sleep 0.01", "true")
    assert done.status == 0, done.stderr
    text = (tmp_path / "out").read_text()
    assert "sleep 0.01" in text
    assert "stddev" in text if form == "csv" else "Relative" in text


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        (("-m", "12", "--min-benchmarking-time", "0"), 12, 12),
        (("-M", "4"), 4, 4),
        (("-m", "3", "-M", "3"), 3, 3),
        (("-M", "3", "--min-benchmarking-time", "9"), 3, 3),
        (("--runs", "2"), 2, 2),
        (("--min-benchmarking-time", "0"), 10, 10),
    ],
)
def test_how_often_a_command_runs(
    guestmark: CommandLine, options: tuple[str, ...], least: int, most: int
) -> None:
    (found,) = exported(guestmark, *options, "sleep 0.01")
    assert least <= len(found["times"]) <= most  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-m", "5", "-M", "4"), "more than --max-runs"),
        (("-m", "5", "-r", "4"), "cannot be combined with --blocks"),
        (("-M", "5", "--quick"), "--quick cannot be combined"),
        (("-S", "bash", "-N"), "contradict"),
        (("-S", "'"), "--shell"),
        (("-S", ""), "--shell is empty"),
        (("--ignore-failure=1,x",), "does not list exit statuses"),
        (("-i=256",), "does not list exit statuses"),
        (("--output", "out.log"), "redirect the output in the command"),
        (("--output", "inherit", "--output", "null"), "applies to all commands"),
        (("--output", "null", "--output", "null", "--output", "pipe"), "given 3 times for 1 command"),
        (("--reference-name", "old"), "requires --reference"),
        (("--sort", "size"), "mean-time"),
        (("--style", "loud"), "nocolor"),
        (("-u", "hour"), "millisecond"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way(
    guestmark: CommandLine, options: tuple[str, ...], said: str
) -> None:
    done = guestmark("exec", *options, "true")
    assert (done.status, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_shell_runs_each_command_and_its_start_is_subtracted(guestmark: CommandLine) -> None:
    function = {"BASH_FUNC_nap%%": "() { sleep 0.3; }"}  # as `export -f` hands it on
    for typed in (("-S", "bash", "nap"), ("--shell=bash --norc", "--", "nap"), ("-S", "bash", "nap; true")):
        done = guestmark("exec", "-q", "--json", "-", "-r", "3", *typed, env=function)
        assert done.status == 0, done.stderr
        (cell,) = done.document()["cells"]
        for trial in cell["trials"]:
            wall = trial["measurements"]["wall_s"]
            assert 0.0 < trial["attestation"]["shell_start_s"] < wall
            assert wall > 0.15


def test_the_start_of_a_slow_shell_is_not_the_command_s(guestmark: CommandLine, tmp_path: Path) -> None:
    shell = tmp_path / "slow"
    shell.write_text('#!/bin/sh\nsleep 0.2\nexec sh "$@"\n')
    shell.chmod(0o755)
    (found,) = exported(guestmark, "-r", "2", "-S", str(shell), "sleep 0.05")
    assert 0.02 < found["median"] < 0.15  # type: ignore[operator]


def test_without_a_shell_the_words_are_the_program_s(guestmark: CommandLine) -> None:
    for option in (("-N",), ("-S", "none"), ("--shell=none",)):
        done = guestmark("exec", "-r", "1", *option, "test a = a", "echo 1 | false")
        assert done.status == 0, done.stderr
        assert "sh -c" not in done.stderr


def test_a_command_with_words_for_several_is_refused_in_a_shell_of_its_own(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-S", "bash", "one", "two")
    assert done.status == 2
    assert "exec -S bash -- one --- two" in done.stderr


def test_a_reference_is_the_first_and_relative_to_it(guestmark: CommandLine, tmp_path: Path) -> None:
    done = guestmark(
        "exec", "-q", "-r", "3", "--reference", "sleep 0.3", "--reference-name", "old", "sleep 0.01", "-n", "new",
        "--export-markdown", "-", "--sort", "mean-time",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| `new`", "| `old`"]
    assert rows[1][-1] == "1.00 |"
    assert rows[0][-1].startswith("0.")


def test_rows_stand_in_the_order_that_was_asked_for(guestmark: CommandLine, tmp_path: Path) -> None:
    typed, kept = ["sleep 0.03", "sleep 0.06", "sleep 0.005"], tmp_path / "kept.json"
    for sort in ("command", "auto", "mean-time"):
        done = guestmark("exec", "-q", "-r", "3", "--sort", sort, "--export-json", str(kept), *typed)
        means = {each["command"]: each["mean"] for each in json.loads(kept.read_bytes())["results"]}
        rows = [line for line in done.stdout.splitlines() if line.startswith("sleep ") and "█" in line]
        order = sorted(typed, key=means.__getitem__) if sort == "mean-time" else typed
        assert [row[:11].strip() for row in rows] == order, done.stdout


@pytest.mark.parametrize(("unit", "shown"), [("second", "s"), ("millisecond", "ms"), ("microsecond", "µs")])
def test_times_are_shown_in_the_unit(guestmark: CommandLine, unit: str, shown: str) -> None:
    done = guestmark("exec", "-q", "-r", "2", "-u", unit, "sleep 0.02")
    assert f"wall, {shown} " in done.stdout
    table = guestmark("exec", "-q", "-r", "2", "--time-unit", unit, "--export-markdown", "-", "sleep 0.02")
    assert f"Mean [{shown}]" in table.stdout


@pytest.mark.parametrize(
    ("style", "coloured", "live"),
    [
        ("basic", False, False),
        ("full", True, True),
        ("nocolor", False, True),
        ("color", True, False),
        ("auto", False, False),
    ],
)
def test_a_style_decides_how_the_terminal_is_used(
    guestmark: CommandLine, style: str, coloured: bool, live: bool
) -> None:
    done = guestmark("exec", "-r", "2", "--style", style, "sleep 0.02", "sleep 0.04")
    assert done.status == 0, done.stderr
    assert (re.search(r"\x1b\[[0-9;]*3[0-9]", done.stdout) is not None) is coloured
    assert ("\x1b[?25l" in done.stderr) is live


def test_style_none_shows_nothing(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-r", "1", "--style", "none", "true")
    assert (done.status, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("-i",), 0),
        (("--ignore-failure",), 0),
        (("--ignore-failure=all-non-zero",), 0),
        (("-i=3",), 0),
        (("--ignore-failure=1,3",), 0),
        (("--ignore-failure=4",), 3),
        ((), 3),
    ],
)
def test_failures_that_are_ignored(guestmark: CommandLine, options: tuple[str, ...], status: int) -> None:
    assert guestmark("exec", "-q", "-r", "1", *options, "exit 3").status == status


def test_output_and_input(guestmark: CommandLine, tmp_path: Path) -> None:
    shown = guestmark("exec", "-r", "1", "--output", "inherit", "echo heard")
    assert "heard" in shown.stderr
    each = guestmark(
        "exec",
        "-q",
        "-r",
        "1",
        "--output",
        "null",
        "--output=pipe",
        "test -c /dev/stdout",
        "test -p /dev/stdout",
    )
    assert each.status == 0, each.stdout
    (tmp_path / "file").write_text("given")
    assert guestmark("exec", "-q", "-r", "1", "--input", "file", "grep given").status == 0
    assert guestmark("exec", "-q", "-r", "1", "--input", "null", "-i=1", "grep given").status == 0


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_its_version(guestmark: CommandLine, option: str) -> None:
    for verb in ((), ("exec",)):
        assert guestmark(*verb, option).stdout.startswith("guestmark 0.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-r", "0"], "'-r': 0 is less than 1"),
        (["-r0"], "'-r': 0 is less than 1"),
        (["--runs", "0"], "'--runs': 0 is less than 1"),
        (["--runs=x"], "'--runs': 'x' is not a whole number"),
        (["--blocks", "1.5"], "'--blocks': '1.5' is not a whole number"),
        (["-m", "x"], "'-m': 'x' is not a whole number"),
        (["-w", "-1"], "'-w': -1 is less than 0"),
        (["-u", "furlongs"], "'-u': 'furlongs' is not one of"),
        (["--min-benchmarking-time", "x"], "'--min-benchmarking-time': 'x' is not a number"),
        (["--min-benchmarking-time", "nan"], "'--min-benchmarking-time': 'nan' is not a number"),
        (["--min-benchmarking-time", "-1"], "'--min-benchmarking-time': -1 is less than 0"),
    ],
)
def test_a_wrong_value_is_told_by_the_name_that_was_typed(
    guestmark: CommandLine, words: list[str], told: str
) -> None:
    done = guestmark("exec", *words, "--", "true", "-r", "2")
    assert done.status == 2
    assert done.stderr.startswith(f"guestmark: invalid value for {told}")
