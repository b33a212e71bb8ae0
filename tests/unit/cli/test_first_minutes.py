"""What a stranger types in the first minutes, typed here, and what a log, a screen and a page say of it."""

import html
import json
import re
import subprocess
from pathlib import Path

import click
import pytest

import guestmark as library
from guestmark.cli.parser import build_command
from guestmark.cli.verbs import SYNONYMS, VERBS
from guestmark.ledger import open_ledger
from guestmark.plan.library import list_plan_names
from tests.framework.command_line import CommandLine
from tests.framework.run_kinds import RUNS
from tests.framework.runs import host_uml_tcg

LONG = "--an-option-with-many=words/that/go/on/and/on/beyond/eighty/columns/of/any/terminal"
WARNED = re.compile(r"^(?:Severe|Warning|Note): (.+)$", re.MULTILINE)


def store_run(guestmark: CommandLine, kind: str) -> None:
    run = RUNS[kind]()
    with open_ledger(guestmark.ledger) as ledger:
        run_id = ledger.create_run(run.plan, run.environments[0], run.seed, left_out=run.unusable)
        for trial in run.trials:
            ledger.store_trial(run_id, trial)


def join_lines(text: str) -> str:
    """Undo the folding of a terminal."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("options", [(), ("-q", "-r", "50"), ("--warmup", "2"), ("--time-limit", "60s")])
@pytest.mark.parametrize("commands", [("false",), ("exit 3", "exit 4"), ("no-such-program-here || exit 5",)])
def test_what_never_succeeds_is_given_up_at_once(
    guestmark: CommandLine, options: tuple[str, ...], commands: tuple[str, ...]
) -> None:
    done = guestmark("exec", *options, *commands)
    assert done.status == 3
    document = guestmark("export", "last", "-f", "json").document()
    assert document["run"]["trials"] <= 3 * (len(commands) + 1)
    assert "Nothing was measured" in done.stdout
    assert "-i" in done.stdout
    failures = re.findall(r"(\S+ failed: [^;\n]+)", done.stderr)
    assert len(failures) == len(set(failures)) <= len(commands), done.stderr


ONE_WORD = (
    *(
        "true;",
        "(true)",
        "true|true",
        "true>/dev/null",
        "true&&true",
        "false||true",
        "true&",
        "`true`",
        "$(true)",
    ),
    *(":", "times", "exit", "A=1", "${HOME:+true}", "true#", "</dev/null"),
)


@pytest.mark.parametrize("text", ONE_WORD)
def test_a_text_for_a_shell_may_be_one_word(guestmark: CommandLine, text: str) -> None:
    """It was looked for as a program, and `true` suggested for `true;`."""
    status = subprocess.run(["sh", "-c", text], check=False, capture_output=True).returncode
    done = guestmark("exec", "-q", "-r", "1", "--", text)
    assert (done.status == 0) == (status == 0), done.stderr
    assert "not found" not in done.stderr


@pytest.mark.parametrize("text", ["echo 'a", 'echo "a', "echo a\\"])
def test_a_quotation_without_an_end_is_what_is_refused(guestmark: CommandLine, text: str) -> None:
    done = guestmark("exec", text)
    assert done.status == 2
    assert done.stderr.splitlines() == [
        f"guestmark: the command {text!r} has an unterminated quotation",
        "  close it, as for a shell",
    ]


def test_one_that_never_succeeds_does_not_hold_up_the_other(guestmark: CommandLine) -> None:
    done = guestmark("exec", "-r", "8", "exit 0", "exit 4")
    assert done.status == 1
    run = guestmark("export", "last").document()["run"]
    assert run["failed"] == 3
    assert run["trials"] >= 8 + 3


@pytest.mark.parametrize("width", ["20", "80", "300"])
def test_a_log_has_whole_lines(guestmark: CommandLine, width: str) -> None:
    """A log has no width, whatever a shell has exported."""
    line = f"exit 3 {LONG}"
    done = guestmark("exec", "-r", "2", f"sh -c '{line}'", "true", env={"COLUMNS": width})
    assert "…" not in done.stderr.replace("…\n", "")
    assert all(text.startswith(("guestmark: ", "  ")) for text in done.stderr.splitlines()), done.stderr
    reason = "the command failed with exit status 3 (-i measures failing runs, too"
    assert any(reason in text for text in done.stderr.splitlines())


@pytest.mark.parametrize("kind", RUNS)
def test_what_limits_figures_is_the_same_wherever_it_is_said(
    guestmark: CommandLine, tmp_path: Path, kind: str
) -> None:
    """The document has all of it; details and page say each whole, and the screen begins of them, up to a reason."""
    store_run(guestmark, kind)
    page = tmp_path / "page.html"
    screen = guestmark("show", env={"COLUMNS": "80"}).stdout
    details = join_lines(guestmark("show", "--details", "--html", page, env={"COLUMNS": "80"}).stdout)
    document = guestmark("export", "last", "-f", "json").document()
    whole = [
        f"{finding['reason'][:1].upper()}{finding['reason'][1:]}".rstrip(".")
        for finding in document["validity"]
    ]
    drawn = join_lines(html.unescape(re.sub(r"<[^>]+>", "", page.read_text())))
    for text in whole:
        assert text.lower() in details.lower()
        assert text.lower() in drawn.lower()
    for said in WARNED.findall(re.sub(r"\n(?! *(?:Severe|Warning|Note|\d+ blocks?)\b)(?=\S)", " ", screen)):
        begun = re.sub(r" \(and \d+ more\)$|[.;]? *$", "", join_lines(said))
        assert any(text.lower().startswith(begun.lower()[:60]) for text in whole), (begun, whole)


FILES = {
    "mine.toml": "run",
    "a.pcap": "capture",
    "a.pcapng.zst": "capture",
    "run.gmk.html": "import",
    "mine": "",  # nothing tells what it is
}
AS_VERBS = [
    *((name, f"guestmark run {name}") for name in list_plan_names() if name not in VERBS | SYNONYMS),
    ("density -r 6", "guestmark run density -r 6"),
    ("upload --for 5m", "guestmark run upload --for 5m"),
    ("last", "guestmark show last"),
    ("20261128-200946-j60 --details", "guestmark show 20261128-200946-j60 --details"),
    ("sh -c true", "guestmark exec -- sh -c true"),
    *((name, f"guestmark {verb} {name}" if verb else "") for name, verb in FILES.items()),
]


@pytest.mark.parametrize(("typed", "line"), AS_VERBS)
def test_what_stands_in_place_of_a_verb_is_told_of_the_right_one(
    guestmark: CommandLine, typed: str, line: str
) -> None:
    for name in FILES:
        (guestmark.folder / name).write_text("")
    done = guestmark(*typed.split())
    assert (done.status, done.stdout) == (2, "")
    mistake, advice = done.stderr.splitlines()
    assert mistake == f"guestmark: unknown verb '{typed.split(maxsplit=1)[0]}'"
    assert advice.partition(": ")[2] == line or (not line and "known: " in advice)


NEEDS_A_WORD = [
    verb
    for verb in VERBS
    if any(isinstance(each, click.Argument) and each.required for each in build_command(verb).params)
]


@pytest.mark.parametrize("verb", NEEDS_A_WORD)
def test_a_missing_word_is_named_with_what_it_may_be(guestmark: CommandLine, verb: str) -> None:
    missing = next(each for each in build_command(verb).params if isinstance(each, click.Argument))
    done = guestmark(verb)
    assert (done.status, done.stdout) == (2, "")
    mistake, advice = done.stderr.splitlines()
    assert "missing argument" in mistake
    assert advice.startswith(f"  {missing.metavar}: {str(missing.help).rstrip('.')}; ")


@pytest.mark.parametrize("verb", ["exec", "ab"])
@pytest.mark.parametrize("limit", ["wal > 3", "> 1.5%%", "tcg wall_s >", "+5%", "tcg wall_s > five"])
def test_a_limit_s_typo_is_a_wrong_command_line(guestmark: CommandLine, verb: str, limit: str) -> None:
    done = guestmark(verb, "--fail-if", limit, "--", "true", *(["---", "true"] if verb == "ab" else []))
    assert (done.status, done.stdout) == (2, "")
    assert f"--fail-if {limit!r} is not a limit" in done.stderr
    assert not guestmark.ledger.exists()


def test_an_import_says_what_the_run_is_called_from_now_on(guestmark: CommandLine, tmp_path: Path) -> None:
    store_run(guestmark, "few")
    bundle = tmp_path / "run.gmk.html"
    (listed,) = json.loads(guestmark("runs", "--json").stdout)
    assert guestmark("export", "last", "--bundle", bundle).status == 0
    other = CommandLine(tmp_path / "other")
    done = other("import", bundle)
    assert done.status == 0
    assert done.stdout.split() == [listed["id"]]
    assert other("show", done.stdout.strip()).status == 0


def test_the_library_s_answers_are_a_line_until_they_are_asked(guestmark: CommandLine) -> None:
    for blocks in (6, 8):
        run = host_uml_tcg(blocks=blocks)
        with open_ledger(guestmark.ledger) as ledger:
            run_id = ledger.create_run(run.plan, {}, run.seed)
            for trial in run.trials:
                ledger.store_trial(run_id, trial)
    after = library.load("last", ledger=guestmark.ledger)
    compared = after.compare(after)
    for answer in (after, compared, *after.ratios, *compared.moved):
        assert len(repr(answer)) < 400
        assert "\n" not in repr(answer)
