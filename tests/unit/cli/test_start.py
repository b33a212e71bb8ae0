"""The command line itself: start-up, help, completion, errors that are bugs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.cli.verbs import FIRST, GROUPED, SYNONYMS, VERBS, replace_group
from tests.framework import PACKAGES
from tests.framework.preloaded import call as guestmark

HEAVY = (
    "numpy",
    "scipy",
    "polars",
    "sqlalchemy",
    "pydantic",
    "rich",
    "msgspec",
    "jinja2",
    "vl_convert",
    "nacl",
)


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(PACKAGES), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, contextlib, io; from guestmark.cli import main; sys.argv = ['guestmark', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()): status = main()\n"
        f"print(status, *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(code).stdout == "0\n"


def test_a_run_on_the_host_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    unused = ("numpy.ma", "sqlalchemy.dialects.postgresql", "polars", "altair", "scipy", "jinja2")
    words = ["guestmark", "exec", "-q", "-r", "2", "--ledger", str(tmp_path / "ledger"), "--", "true"]
    code = (
        f"import sys, contextlib, io; from guestmark.cli import main; sys.argv = {words!r}\n"
        "with contextlib.redirect_stdout(io.StringIO()): status = main()\n"
        f"print(status, *[name for name in {unused!r} if name in sys.modules])"
    )
    assert python(code).stdout == "0\n"


def test_every_verb_has_help() -> None:
    listed = guestmark("--help").stdout
    commands = listed.partition("Commands:")[2].partition("Groups")[0].splitlines()
    assert len([row for row in commands if row.startswith("  ") and row[2] != " "]) == len(FIRST) == 12
    for verb in ("exec", "doctor", "runs", "show", "resume", "export", "shell"):
        assert re.search(rf"[ ,]{verb}\b", listed)
        shown = guestmark(verb, "--help")
        assert shown.returncode == 0
        assert f"Usage: guestmark {verb}" in shown.stdout


def test_every_verb_is_on_the_first_screen_or_in_a_group() -> None:
    members = {verb for group in GROUPED.values() for verb in group.values()}
    assert {*FIRST, *members, "ledger", "fleet", "plans", "machine"} == set(VERBS)


def test_a_member_of_a_group_is_the_verb_of_its_name() -> None:
    assert replace_group(["runs", "rm", "x"]) == ["rm", "x"]
    assert replace_group(["runs", "--json"]) == ["runs", "--json"]
    for typed in (["runs", "rm", "--help"], ["guest", "shell", "--help"], ["changes", "bisect", "--help"]):
        assert f"Usage: guestmark {typed[1]}" in guestmark(*typed).stdout
    assert "guestmark disk powercut" in guestmark("disk").stdout
    assert "did you mean 'powercut'?" in guestmark("disk", "powerct").stderr


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("plot", "show --html FILE"),
        ("list", "runs"),
        ("diff", "compare RUN RUN"),
        ("bench", "exec -- COMMAND"),
    ],
)
def test_a_synonym_leads_to_the_command(typed: str, hint: str) -> None:
    found = guestmark(typed)
    assert found.returncode == 2
    assert f"type: guestmark {hint}\n" in found.stderr


def test_synonyms_lead_to_commands_that_exist() -> None:
    for word, line in SYNONYMS.items():
        assert word not in VERBS
        assert line.startswith("-") or replace_group(line.split())[0] in VERBS


def test_version() -> None:
    code = (
        "import sys; sys.argv = ['guestmark', '--version']; from guestmark.cli import main; sys.exit(main())"
    )
    assert python(code).stdout == "guestmark 0.3.0\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("guestmark ex", {"exec", "export"}),
        ("guestmark exec --on u", {"uml"}),
        ("guestmark exec --on host,t", {"host,tcg"}),
        ("guestmark exec --set mac", {"machine="}),
        ("guestmark exec --set memory=512M,1", {"memory=512M,1G"}),
        ("guestmark shell --on k", {"kvm"}),
        ("guestmark exec --null a", {"all"}),
        ("guestmark fleet r", {"run", "resume"}),
        ("guestmark fleet run upl", {"upload"}),
        ("guestmark fleet doctor u", set()),
    ],
)
def test_completion(words: str, found: set[str]) -> None:
    shown = guestmark(
        _GUESTMARK_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
    )
    assert set(shown.stdout.split()) == found


def test_runs_are_completed_from_the_ledger(tmp_path: Path) -> None:
    environment = {"XDG_DATA_HOME": str(tmp_path), "GUESTMARK_LEDGER": ""}
    words = {"_GUESTMARK_COMPLETE": "complete_bash", "COMP_WORDS": "guestmark show l", "COMP_CWORD": "2"}
    assert guestmark(**environment, **words).stdout.strip() == ""  # there is no ledger yet
    assert guestmark("exec", "-q", "--blocks", "1", "--", "true", **environment).returncode == 0
    assert guestmark(**environment, **words).stdout.split() == ["last"]
    elsewhere = {**environment, "GUESTMARK_LEDGER": str(tmp_path / "none.sqlite")}
    assert guestmark(**elsewhere, **words).stdout.strip() == ""


@pytest.mark.parametrize("named", [True, False])
def test_where_the_ledger_is_can_be_seen(tmp_path: Path, named: bool) -> None:
    place = tmp_path / "results.sqlite" if named else tmp_path / "data" / "guestmark" / "ledger.sqlite"
    environment = {"XDG_DATA_HOME": str(tmp_path / "data"), "GUESTMARK_LEDGER": str(place) if named else ""}
    if not named:
        empty = guestmark("runs", **environment)
        assert (empty.returncode, empty.stderr) == (0, f"guestmark: the ledger {place} holds no runs yet\n")
    assert guestmark("exec", "-q", "--blocks", "1", "--", "true", **environment).returncode == 0
    listed = guestmark("runs", **environment)
    assert listed.stderr == f"guestmark: the ledger is {place}\n"
    assert str(place) not in listed.stdout  # the table is read by programs
    assert guestmark("runs", "--json", **environment).stderr == ""
    assert "~/.local/share/guestmark/ledger.sqlite" in " ".join(guestmark("runs", "--help").stdout.split())


def test_the_doctor_names_the_ledger_without_its_password(tmp_path: Path) -> None:
    code = "from guestmark.cli.do.doctor import _locate_ledger; print(_locate_ledger())"
    told = python(code, GUESTMARK_LEDGER="postgresql://me:secret@lab/runs").stdout
    assert told == "postgresql://me:***@lab/runs\n"
    told = python(code, GUESTMARK_LEDGER="", XDG_DATA_HOME=str(tmp_path)).stdout
    assert told == f"{tmp_path}/guestmark/ledger.sqlite\n"
    told = python(code, GUESTMARK_LEDGER="~/runs.sqlite", HOME=str(tmp_path)).stdout
    assert told == f"{tmp_path}/runs.sqlite\n"


def test_a_bug_is_told_in_two_lines_and_kept(tmp_path: Path) -> None:
    code = (
        "import sys; import guestmark.cli.app as app\n"
        "def broken(_): raise RuntimeError('not\\nexpected')\n"
        "app.run_command_line = broken\n"
        "from guestmark.cli import main; sys.exit(main())"
    )
    shown = python(code, XDG_STATE_HOME=str(tmp_path))
    assert shown.returncode == 70
    assert "RuntimeError: not expected" in shown.stderr
    assert len(shown.stderr.splitlines()) == 2
    (report,) = tmp_path.rglob("crash-*.txt")
    assert "Traceback" in report.read_text()


def test_a_run_is_analysed_once_to_be_shown(tmp_path: Path) -> None:
    """The analysis is most of what `show` computes itself."""
    environment = {"GUESTMARK_LEDGER": str(tmp_path / "ledger.sqlite")}
    assert guestmark("exec", "-q", "--blocks", "2", "--", "true", **environment).returncode == 0
    code = (
        "import sys; from guestmark.cli import main\n"
        "analyses = []\n"
        "def note(frame, event, _):\n"
        "    if event == 'call' and frame.f_code.co_name == 'analyse_run': analyses.append(frame.f_code.co_filename)\n"
        "sys.argv = ['guestmark', 'show', 'last']; sys.setprofile(note); status = main(); sys.setprofile(None)\n"
        "print(status, len(analyses), file=sys.stderr)"
    )
    assert python(code, **environment).stderr == "0 1\n"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["exec"], "missing argument '-- COMMAND...'", "guestmark exec --help"),
        (["shell"], "missing option '--on'", "guestmark shell --help"),
        (["exec", "--block", "3", "--", "true"], "no such option: --block", "did you mean --blocks?"),
        (["exec", "--blocks", "0", "--", "true"], "'--blocks': 0 is less than 1", "--help"),
        (["exec", "--blocks", "x", "--", "true"], "'--blocks': 'x' is not a whole number\n", "--help"),
        (["exec", "--null", "some", "--", "true"], "'--null': 'some' is not one of 'baseline'", "--help"),
        (["exec", "--on"], "option '--on' requires an argument", "guestmark exec --help"),
        (["quiet"], "missing argument 'ACTION'. Choose from: on, off, status", "guestmark quiet --help"),
        (
            ["boot", "--for", "1m"],
            "no such option: --for",
            "use --time-limit here; --for belongs to run",
        ),
        (["capture", "--for", "1m", "x"], "no such option: --for", "--for belongs to run"),
        (["exec", "--published", "--", "true"], "no such option: --published", "--published belongs to run"),
        (["--versio"], "no such option: --versio", "did you mean --version?"),
        (["plans", "show"], "no plan is named", "name one of: "),
        (
            ["plans", "cpu"],
            "plans does not take the argument 'cpu'",
            "did you mean guestmark plans show cpu?",
        ),
        (
            ["plans", "show", "cpu", "tour"],
            "plans does not take the argument 'tour'",
            "guestmark plans show NAME",
        ),
    ],
)
def test_a_wrong_command_line_is_told_in_two_lines(arguments: list[str], message: str, hint: str) -> None:
    shown = guestmark(*arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    said, todo = shown.stderr.splitlines(keepends=True)
    assert said.startswith(f"guestmark: {message[0]}") or said.startswith("guestmark: invalid value for")
    assert message in said
    assert hint in todo


def test_without_a_verb_the_help_is_shown_as_a_mistake() -> None:
    shown = guestmark()
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == guestmark("--help").stdout


@pytest.mark.parametrize(
    "raised",
    ["KeyboardInterrupt", "RuntimeError('Error calling __set_name__') from KeyboardInterrupt()"],
)
def test_an_interrupt_while_modules_are_loaded_is_quiet(tmp_path: Path, raised: str) -> None:
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == sys.argv[1]: raise {raised}\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from guestmark.cli import main; sys.exit(main())"
    )
    for module in ("guestmark.cli.app", "click"):
        shown = python(code, module, XDG_STATE_HOME=str(tmp_path))
        assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "")
    assert not list(tmp_path.iterdir())


def test_what_needs_no_parser_imports_none() -> None:
    """A parser takes longer to import than `--version` and `--help` take."""
    for words in (["--version"], ["--help"], ["-h"]):
        code = (
            f"import sys, contextlib, io; from guestmark.cli import main; sys.argv = ['guestmark', *{words!r}]\n"
            "with contextlib.redirect_stdout(io.StringIO()): status = main()\n"
            "print(status, 'click' in sys.modules)"
        )
        assert python(code).stdout == "0 False\n"


def test_a_plain_show_needs_no_parser(tmp_path: Path) -> None:
    environment = {"GUESTMARK_LEDGER": str(tmp_path / "ledger.sqlite")}
    assert guestmark("exec", "-q", "-r", "2", "--", "true", **environment).returncode == 0
    for words in (["show"], ["show", "last"], ["show", "last", "--details"]):
        code = (
            f"import sys, contextlib, io; from guestmark.cli import main; sys.argv = ['guestmark', *{words!r}]\n"
            "with contextlib.redirect_stdout(io.StringIO()) as shown: status = main()\n"
            "print(status, 'click' in sys.modules, '2 blocks' in shown.getvalue())"
        )
        assert python(code, **environment).stdout == "0 False True\n"


def test_a_run_without_a_trial_is_not_called_failed(tmp_path: Path) -> None:
    environment = {"GUESTMARK_LEDGER": str(tmp_path / "ledger.sqlite")}
    made = guestmark("exec", "-q", "--time-limit", "1ms", "--on", "host,host", "--", "true", **environment)
    listed = guestmark("runs", **environment).stdout
    assert made.returncode == 3, made.stderr
    assert "stopped at the time limit" in listed
    assert "failed" not in listed.splitlines()[1]


def test_the_candidates_of_a_race_are_listed_and_few_of_what_is_left_out(tmp_path: Path) -> None:
    environment = {"GUESTMARK_LEDGER": str(tmp_path / "ledger.sqlite")}
    words = ("tune", "fastest-safe", "--only", "platform=tcg and cache=none", "--list")
    listed = guestmark(*words, **environment)
    assert listed.returncode == 0, listed.stderr
    assert all("cache=none" in row for row in listed.stdout.splitlines())
    assert re.search(r"left out: [^:]+ and \d+ more cells: a raw image has no metadata", listed.stderr)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_export_and_a_missing_kernel_say_what_is_here(tmp_path: Path) -> None:
    environment = {"GUESTMARK_LEDGER": str(tmp_path / "ledger.sqlite")}
    assert guestmark("exec", "-q", "-r", "2", "--", "true", **environment).returncode == 0
    page = tmp_path / "run.gmk.html"
    assert guestmark("export", "--bundle", str(page), **environment).returncode == 0
    assert page.exists()
    refused = guestmark("ab", "--kernel", "/none/a", "/none/b", "--", "true", **environment)
    assert refused.returncode == 2
    assert "there is no kernel at '/none/a'; kernels on this host: " in refused.stderr
