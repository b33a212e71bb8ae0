"""Options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from guestmark.core.errors import UsageError
from guestmark.core.option import Argument, Candidates, Option
from guestmark.core.units import format_count
from guestmark.plan.policy_options import find_policy_option
from guestmark.plan.scale import parse_scale

if TYPE_CHECKING:
    pass


def make_platforms_option(explained: str, metavar: str = "PLATFORM,...") -> Option:
    """Makes the option `--on`; each command explains in its own words what the platforms are for."""
    return Option("--on", explained, metavar, candidates=Candidates.PLATFORMS)


Machine = Annotated[
    list[str] | None,
    Option("--machine", "Measure on the machine that FILE defines, as with --on own:NAME.", "FILE"),
]


def list_platforms(on: list[str] | None, machines: list[str] | None) -> list[str]:
    """Lists what `--on` and `--machine` name, and makes the files known. Raises `UsageError` for a bad file."""
    if not machines:
        return on or []
    # Few command lines name a file, and most must not wait for what reads it.
    from guestmark.platforms.own.definition import read_definition
    from guestmark.platforms.own.store import add_file

    found: dict[str, Path] = {}
    for file in machines:
        path = Path(file)
        name = read_definition(path).name
        if name in found and found[name].absolute() != path.absolute():
            raise UsageError(
                f"{found[name]} and {path} both define a machine named {name}",
                hint="give one of them another name, or one file a parameter (--set own.NAME=A,B)",
            )
        found[name] = path
        add_file(path)
    return [*(on or []), *(f"own:{name}" for name in found)]


Ledger = Annotated[
    str | None,
    Option(
        "--ledger",
        "The ledger to use: a file or a database URL. Default: ~/.local/share/guestmark/ledger.sqlite.",
        "PATH",
        environment="GUESTMARK_LEDGER",
    ),
]
Run = Annotated[
    str, Argument("RUN", "A run's id, the beginning or end of its id, or `last`.", Candidates.RUNS)
]
QuietHost = Annotated[
    bool,
    Option(
        "--quiet-host", "Make the host's speed steadier during this run (see guestmark quiet); needs root."
    ),
]
Quiet = Annotated[bool, Option("--quiet -q", "Show no progress, only the result.")]
Json = Annotated[
    str | None, Option("--json", "Write the result document to FILE (- for standard output).", "FILE")
]
Html = Annotated[str | None, Option("--html", "Write a page with charts to FILE, for a browser.", "FILE")]
Csv = Annotated[str | None, Option("--csv", "Write one line per measurement to FILE.", "FILE")]
Markdown = Annotated[str | None, Option("--markdown", "Write the tables to FILE as Markdown.", "FILE")]
ExportJson = Annotated[
    str | None,
    Option("--export-json", "Write hyperfine's JSON document to FILE, for scripts that read it.", "FILE"),
]


def _make_table_option(form: str, name: str) -> Option:
    return Option(f"--export-{form}", f"Write hyperfine's table of times to FILE as {name}.", "FILE")


ExportCsv = Annotated[str | None, _make_table_option("csv", "CSV")]
ExportMarkdown = Annotated[str | None, _make_table_option("markdown", "Markdown")]
ExportAsciidoc = Annotated[str | None, _make_table_option("asciidoc", "AsciiDoc")]
ExportOrgmode = Annotated[str | None, _make_table_option("orgmode", "Org mode")]

# Which cells are measured, and what they are compared with.
Baseline = Annotated[
    str | None,
    Option(
        "--baseline",
        "Compare the others with this: a platform, or a cell such as `tcg memory=1G`. Default: the first.",
        "PLATFORM",
        candidates=Candidates.PLATFORMS,
    ),
]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        "Give guests this setting; several levels are compared with each other. Repeatable.",
        "FACTOR=LEVEL,...",
        candidates=Candidates.SETTINGS,
    ),
]
Kernel = Annotated[
    str | None, Option("--kernel", "Boot guests from this kernel; short for --set kernel=PATH.", "PATH")
]
# For commands that take a few of the policy's options, not all.
Blocks = Annotated[int | None, find_policy_option("blocks")]
Precision = Annotated[float | None, find_policy_option("precision")]
TimeLimit = Annotated[float | None, find_policy_option("time_limit_s")]
Budget = Annotated[float | None, find_policy_option("budget_s")]
OnlyList = Annotated[
    bool, Option("--list", "Show the cells that would run and how long they take; run nothing.")
]

# The user's commands to run before and after the measured one; hyperfine has the same names for them.
Setup = Annotated[
    list[str] | None,
    Option("--setup -s", "Run once on each fresh machine, before the first run; not timed.", "COMMAND"),
]
Prepare = Annotated[
    list[str] | None,
    Option(
        "--prepare -p",
        "Run before every run of the command; not timed. Give it once, or once for each command.",
        "COMMAND",
    ),
]
Conclude = Annotated[
    list[str] | None,
    Option(
        "--conclude -C",
        "Run after every run of the command; not timed. Give it once, or once for each command.",
        "COMMAND",
    ),
]
Check = Annotated[
    list[str] | None,
    Option("--check", "Run after every run; if it fails, the trial fails. Not timed.", "COMMAND"),
]
Cleanup = Annotated[
    list[str] | None,
    Option("--cleanup -c", "Run once on each machine, after the last measurement; not timed.", "COMMAND"),
]
# As in hyperfine, every command may have its own; the others are run once for all of them.
_ONE_PER_COMMAND = {"prepare", "conclude"}


def collect_hooks(command_count: int, **given: list[str] | None) -> dict[str, tuple[str, ...]]:
    """Collects the hooks that were given: one for all commands, or one for each. Raises `UsageError` otherwise."""
    hooks = {name: tuple(texts) for name, texts in given.items() if texts}
    for name, texts in hooks.items():
        own_text_allowed = name in _ONE_PER_COMMAND
        if len(texts) == 1 or (own_text_allowed and len(texts) == command_count):
            continue
        hint = "give it once; && joins commands in its text"
        if own_text_allowed:
            hint += ", or give it once for each command"
        raise UsageError(
            f"--{name} is given {len(texts)} times for {format_count(command_count, 'command')}", hint=hint
        )
    return hooks


Metrics = Annotated[
    list[str] | None,
    Option(
        "--metric",
        "Read a number from the output: group `value`, or the only group; the last match counts. Or json:PATH, such as "
        "json:jobs.0.read.bw, if the output is JSON. The first --metric decides when the run is precise enough. "
        "Repeatable.",
        "NAME[:UNIT[:higher|lower]]=REGEX",
    ),
]
Input = Annotated[str | None, Option("--input", "Use this file as the command's standard input.", "FILE")]
IgnoreFailure = Annotated[
    bool, Option("--ignore-failure -i", "Measure the command even when its exit status is not 0.")
]
FailIf = Annotated[
    list[str] | None,
    Option(
        "--fail-if",
        "Exit with 1 when the ratio to the baseline is shown to break this limit, with 125 when undecided: "
        "'tcg wall_s > +5%', 'kernel=new > +2%'. For power cuts: lost, part (something was never synced), unproven. "
        "Repeatable.",
        "LIMIT",
    ),
]
Junit = Annotated[
    str | None, Option("--junit", "Write the outcome of each --fail-if to FILE as JUnit XML.", "FILE")
]
Keep = Annotated[bool, Option("--keep", "Keep the disk images of trials that fail or are interrupted.")]
Wait = Annotated[
    bool,
    Option("--wait/--no-wait", "Wait for a machine that another guestmark is measuring on, or fail at once."),
]
Prove = Annotated[
    bool, Option("--prove", "Cut the power of every kind of disk once, untimed, and show what is lost.")
]
Scale = Annotated[
    float | None,
    Option(
        "--scale",
        "Multiply the sizes, durations and counts that the plan marks, e.g. 0.05.",
        "FACTOR",
        parse=parse_scale,
    ),
]
Only = Annotated[
    str | None,
    Option(
        "--only",
        "Measure only these cells, e.g. 'platform=tcg and filesystem=ext2,ext4', or a cell's id.",
        "EXPR",
    ),
]
Details = Annotated[
    bool,
    Option(
        "--details",
        "Show everything: other metrics, totals, slow and first runs, the control, placement, history.",
    ),
]
Trust = Annotated[bool, Option("--trust", "Run the commands of an imported run; they are shown first.")]
Published = Annotated[bool, Option("--published --then", "Show published figures beside the measured ones.")]


Name = Annotated[str | None, Option("--name", "A name for the run, usable as RUN.", "NAME")]
Note = Annotated[str | None, Option("--note", "A sentence about the run.", "TEXT")]
Labels = Annotated[
    list[str] | None,
    Option(
        "--label",
        'A label of the run, e.g. --label commit="$(git rev-parse HEAD)". Repeatable.',
        "NAME=VALUE",
    ),
]
Tags = Annotated[list[str] | None, Option("--tag", "A tag of the run. Repeatable.", "TAG")]
