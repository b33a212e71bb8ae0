"""The command line itself: start-up, help, completion, errors that are bugs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
HEAVY = ("numpy", "scipy", "polars", "sqlalchemy", "pydantic", "rich", "msgspec", "jinja2", "vl_convert")


def python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "python"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def guestmark(*arguments, **environment):
    return python(
        "import sys; sys.argv[0] = 'guestmark'; from guestmark.cli import main; sys.exit(main())",
        *arguments,
        **environment,
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys, contextlib, io; from guestmark.cli import main; sys.argv = ['guestmark', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()): status = main()\n"
        f"print(status, *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(code).stdout == "0\n"


def test_every_verb_has_help():
    listed = guestmark("--help").stdout
    for verb in ("exec", "doctor", "runs", "show", "resume", "export", "shell"):
        assert f"  {verb} " in listed
        shown = guestmark(verb, "--help")
        assert shown.returncode == 0
        assert f"Usage: guestmark {verb}" in shown.stdout


def test_version():
    assert guestmark("--version").stdout == "guestmark 0.1.0\n"


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
    ],
)
def test_completion(words, found):
    shown = guestmark(
        _GUESTMARK_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
    )
    assert set(shown.stdout.split()) == found


def test_runs_are_completed_from_the_ledger(tmp_path):
    environment = {"XDG_DATA_HOME": str(tmp_path), "GUESTMARK_LEDGER": ""}
    words = {"_GUESTMARK_COMPLETE": "complete_bash", "COMP_WORDS": "guestmark show l", "COMP_CWORD": "2"}
    assert guestmark(**environment, **words).stdout.strip() == ""  # there is no ledger yet
    assert guestmark("exec", "-q", "--blocks", "1", "--", "true", **environment).returncode == 0
    assert guestmark(**environment, **words).stdout.split() == ["last"]


def test_a_bug_is_told_in_two_lines_and_kept(tmp_path):
    code = (
        "import sys; import guestmark.cli.app as app\n"
        "def broken(**_): raise RuntimeError('not\\nexpected')\n"
        "app.app = broken\n"
        "from guestmark.cli import main; sys.exit(main())"
    )
    shown = python(code, XDG_STATE_HOME=str(tmp_path))
    assert shown.returncode == 70
    assert "RuntimeError: not expected" in shown.stderr
    assert len(shown.stderr.splitlines()) == 2
    (report,) = tmp_path.rglob("crash-*.txt")
    assert "Traceback" in report.read_text()
