"""Parsing of option values, and their completion in the shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from guestmark.core import units
from guestmark.core.errors import UsageError
from guestmark.core.home import LATEST
from guestmark.plan.matrix import NullCells

if TYPE_CHECKING:
    from guestmark.ledger.run_annotations import Remarks
if TYPE_CHECKING:
    from guestmark.core.model import Plan
    from guestmark.ledger.store import Ledger as OpenLedger

T = TypeVar("T")


def show_version(wanted: bool) -> None:
    """Prints the version, and ends."""
    if wanted:
        from guestmark.cli.verbs import version
        from guestmark.page.say import tell

        tell(version())
        raise typer.Exit


def value(option: str, parse: Callable[[str], T], text: str | None) -> T | None:
    """Parses an option's text when it was given. Raises `UsageError` naming the option."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def positive_duration(option: str, text: str | None) -> float | None:
    """Seconds above 0. Raises `UsageError` naming the option."""
    seconds = value(option, units.parse_duration, text)
    if seconds is not None and seconds <= 0:
        raise UsageError(f"{option}: {text!r} is not above 0", hint="e.g. 90s, 10m or 1h30m")
    return seconds


def with_kernel(settings: list[str] | None, kernel: str | None) -> list[str]:
    """The `--set` values with that of `--kernel`."""
    chosen = [] if kernel is None else ["kernel=" + kernel.replace(",", "\\,")]
    return [*(settings or ()), *chosen]


def complete_platform(incomplete: str) -> list[str]:
    """Completions of the platform being typed after `--on`."""
    from guestmark.core.registry import platform_kinds, platform_names

    before, comma, last = incomplete.rpartition(",")
    if "@" in last:
        from guestmark.core.architectures import ARCHITECTURES

        kind = last.partition("@")[0]
        return [f"{before}{comma}{kind}@{name}" for name in ARCHITECTURES]
    destined = (f"{name}:" for name, kind in platform_kinds().items() if kind.takes_destination)
    return [f"{before}{comma}{name}" for name in (*platform_names(), *destined)]


def on(text: str, metavar: str = "PLATFORM,...") -> Any:
    """The option `--on`; each command explains in its own words what the platforms are for."""
    return typer.Option("--on", metavar=metavar, help=text, autocompletion=complete_platform)


def complete_setting(incomplete: str) -> list[str]:
    """`FACTOR=`, and after it the usual levels."""
    from guestmark.core import registry

    factors = registry.factors()
    name, equals, levels = incomplete.partition("=")
    if not equals:
        return [f"{factor}=" for factor in factors]
    if name not in factors:
        return []
    before, comma, _ = levels.rpartition(",")
    return [f"{name}={before}{comma}{level}" for level in factors[name].levels]


def complete_from_ledger(
    ctx: typer.Context, newest: str, find: Callable[[OpenLedger], list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """`last`, which is the `newest`, and what is found in the ledger that was named, if there is one."""
    from guestmark.core.errors import GuestmarkError

    try:
        with ledger_to_read(ctx.params.get("ledger")) as ledger:
            return [] if ledger is None else [(LATEST, newest), *find(ledger)]
    except GuestmarkError:
        return []


def complete_run(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of the runs in the ledger, newest first, with what they measured."""
    return complete_from_ledger(
        ctx,
        "the newest run",
        lambda ledger: [(run.id, f"{run.measured} ({run.state.value})") for run in reversed(ledger.runs())],
    )


def complete_plan(incomplete: str) -> list[str]:
    """Built-in plans, and TOML files in the directory that is being typed."""
    import glob

    from guestmark.plan import library

    files = [path for path in glob.glob(f"{glob.escape(incomplete)}*") if path.endswith(".toml")]
    return [*library.list_plan_names(), *sorted(files)]


@contextmanager
def ledger_to_read(path: str | None) -> Iterator[OpenLedger | None]:
    """The ledger for a look at earlier runs; None when there is none yet."""
    from guestmark.ledger import default_path, open_ledger

    missing = not default_path().exists() if path is None else "://" not in path and not os.path.exists(path)
    if missing:
        yield None
        return
    with open_ledger(path, writable=False) as opened:
        yield opened


Ledger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="PATH",
        envvar="GUESTMARK_LEDGER",
        help="The ledger to use: a file, or a database's URL. Default: ~/.local/share/guestmark/ledger.sqlite.",
        show_envvar=True,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, its beginning or end, or `last`.", autocompletion=complete_run
    ),
]
QuietHost = Annotated[
    bool,
    typer.Option(
        "--quiet-host",
        help="Make the host's speed steadier during this run (see guestmark quiet); needs root.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the result document to FILE (- for standard output).",
    ),
]
ExportJson = Annotated[
    str | None,
    typer.Option(
        "--export-json",
        metavar="FILE",
        help="Write hyperfine's document to FILE, for its scripts and readers.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write a page with charts to FILE, for a browser."),
]
Csv = Annotated[
    str | None,
    typer.Option("--csv", metavar="FILE", help="Write one line per measurement to FILE."),
]
Markdown = Annotated[
    str | None,
    typer.Option("--markdown", metavar="FILE", help="Write the tables to FILE as Markdown."),
]


def _table_of_hyperfine(form: str, name: str) -> Any:
    return typer.Option(
        f"--export-{form}", metavar="FILE", help=f"Write hyperfine's table of times to FILE as {name}."
    )


ExportCsv = Annotated[str | None, _table_of_hyperfine("csv", "CSV")]
ExportMarkdown = Annotated[str | None, _table_of_hyperfine("markdown", "Markdown")]
ExportAsciidoc = Annotated[str | None, _table_of_hyperfine("asciidoc", "AsciiDoc")]
ExportOrgmode = Annotated[str | None, _table_of_hyperfine("orgmode", "Org mode's")]

# What every verb that measures can be told.
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="PLATFORM",
        help="What the others are compared with: a platform, or a cell such as `tcg memory=1G`. Default: the first.",
        autocompletion=complete_platform,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FACTOR=LEVEL,...",
        help="Give guests this setting; several levels are compared with each other. Repeatable.",
        autocompletion=complete_setting,
    ),
]
Kernel = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Boot guests from this kernel; short for --set kernel=PATH."),
]
NullCopies = Annotated[
    NullCells | None, typer.Option("--null", help="Cells to measure twice, to find the noise floor.")
]
Blocks = Annotated[
    int | None,
    typer.Option("--blocks", "-r", "--runs", metavar="N", min=1, help="Run exactly this many blocks."),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        help="Stop when all ratios are known to this (default 2%, or 5% of the effect), after 8 blocks.",
    ),
]
Find = Annotated[
    str | None,
    typer.Option(
        metavar="SLOW",
        help="Continue until such slow runs would have been found in 9 of 10 such runs, e.g. 'x2 in 5%': twice as slow "
        "in 1 of 20 runs; 'x2 in 5% of starts' if whole machines may be slow.",
    ),
]
Over = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Spread the blocks over this time, e.g. 2h, so that what changes with the hour is in the intervals.",
    ),
]
TimeLimit = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop after this time at the latest (default 10m).")
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="DURATION",
        help="Wall time of the whole command, e.g. 5m. Sizes, cells and questions are chosen to fit into it.",
    ),
]  # fmt: skip
TrialLimit = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Kill the command after this time; the trial fails (default 10m)."),
]
Margin = Annotated[
    str | None, typer.Option(metavar="PERCENT", help="Differences below this do not matter (default 3%).")
]
Warmup = Annotated[
    int | None,
    typer.Option(
        "--warmup", "-w", metavar="N", min=0, help="Unmeasured runs on each fresh machine first (default 1)."
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Measured runs on each fresh machine (default: 1 to 20, by duration)."
    ),
]
# What is said of a command of the user's own.
Setup = Annotated[
    list[str] | None,
    typer.Option(
        "--setup", "-s", metavar="COMMAND", help="Runs once on each fresh machine, first; not measured."
    ),
]
Prepare = Annotated[
    list[str] | None,
    typer.Option(
        "--prepare",
        "-p",
        metavar="COMMAND",
        help="Runs before every run of the command; not measured. Once, or once for each command.",
    ),
]
Conclude = Annotated[
    list[str] | None,
    typer.Option(
        "--conclude",
        "-C",
        metavar="COMMAND",
        help="Runs after every run of the command; not measured. Once, or once for each command.",
    ),
]
Check = Annotated[
    list[str] | None,
    typer.Option(
        "--check",
        metavar="COMMAND",
        help="Runs after every run; when it fails, so does the trial. Not measured.",
    ),
]
Cleanup = Annotated[
    list[str] | None,
    typer.Option("--cleanup", "-c", metavar="COMMAND", help="Runs once on each machine, last; not measured."),
]


_EACH = {"prepare", "conclude"}  # of which every command may have its own, as in hyperfine


def hooks(commands: int, **given: list[str] | None) -> dict[str, tuple[str, ...]]:
    """What was given: one text for all commands, or one for each. Raises `UsageError` for any other number."""
    found = {name: tuple(texts) for name, texts in given.items() if texts}
    for name, texts in found.items():
        if len(texts) == 1 or (name in _EACH and len(texts) == commands):
            continue
        once = "give it once; && joins commands in its text"
        raise UsageError(
            f"--{name} is given {len(texts)} times for {units.counted(commands, 'command')}",
            hint=f"{once}, or give it once for each command" if name in _EACH else once,
        )
    return found


Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME[:UNIT[:higher|lower]]=REGEX",
        help="Read a number from the output: group `value`, or the only group; the last match counts. Or json:PATH, "
        "such as json:jobs.0.read.bw, where the output is JSON. The first --metric decides when the run is precise "
        "enough. May be repeated.",
    ),
]
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="FILE", help="Use this file as the command's standard input."),
]
IgnoreFailure = Annotated[
    bool,
    typer.Option("--ignore-failure", "-i", help="Measure the command even when its exit status is not 0."),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="LIMIT",
        help="Exit with 1 when this is shown of the ratio to the baseline, with 125 when undecided: "
        "'tcg wall_s > +5%', 'kernel=new > +2%'. Of power cuts: lost, part (something was never synced), unproven. "
        "Repeatable.",
    ),
]
Junit = Annotated[
    str | None,
    typer.Option(
        "--junit", metavar="FILE", help="Write what became of each --fail-if to FILE as JUnit's XML."
    ),
]
Keep = Annotated[
    bool,
    typer.Option("--keep", help="Keep the disk images of trials that fail or are interrupted."),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="Wait for a machine that another guestmark is measuring on, or fail at once.",
    ),
]
Prove = Annotated[
    bool,
    typer.Option("--prove", help="Cut the power of every kind of disk once, untimed, and say what it loses."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", min=0, help="Seed of the random order.")]
Scale = Annotated[
    str | None,
    typer.Option(
        metavar="FACTOR", help="Multiply the sizes, durations and counts that the plan marks, e.g. 0.05."
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="EXPR",
        help="Only these cells, e.g. 'platform=tcg and filesystem=ext2,ext4', or a cell's id.",
    ),
]
Details = Annotated[
    bool,
    typer.Option(
        "--details",
        help="Show everything: other metrics, totals, slow and first runs, the control, placement, history.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the commands of a run that was imported; they are shown first."),
]
Published = Annotated[
    bool,
    typer.Option("--published", "--then", help="Show published figures beside the measured ones."),
]


def check_published(plan: Plan) -> None:
    """Raises `UsageError` if the plan has no figures for `--published`."""
    if not plan.published:
        raise UsageError(
            f"--published: plan {plan.name} has no published figures",
            hint="see docs/reference/plan-files.md",
        )


Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="A name for the run, usable as RUN.")
]
Note = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A sentence about the run.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help='A label of the run, e.g. --label commit="$(git rev-parse HEAD)". Repeatable.',
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag of the run. Repeatable.")]


def remarks(
    name: str | None, note: str | None, labels: Iterable[str] | None, tags: Iterable[str] | None
) -> Remarks:
    """What these options say. Raises `UsageError` for names that could not be typed again."""
    from guestmark.ledger.run_annotations import Remarks
    from guestmark.ledger.validation import RESERVED, WORD

    if name is not None and (not WORD.fullmatch(name) or name in RESERVED):
        raise UsageError(
            f"--name {name!r} cannot be a run's name", hint="letters, digits and .:/_-, e.g. before-upgrade"
        )
    for tag in tags or ():
        if not WORD.fullmatch(tag):
            raise UsageError(f"--tag {tag!r} cannot be a tag", hint="letters, digits and .:/_-")
    return Remarks(
        name=name or "",
        notes=(note.strip(),) if note and note.strip() else (),
        labels=dict(_label(text) for text in labels or ()),
        tags=tuple(tags or ()),
    )


def _label(text: str) -> tuple[str, str]:
    from guestmark.ledger.validation import WORD

    name, equals, value = text.partition("=")
    if not equals or not WORD.fullmatch(name) or not value.strip():
        raise UsageError(f"--label {text!r} is not NAME=VALUE", hint="e.g. --label commit=1a2b3c")
    return name, value.strip()
