"""The commands. Each is a module of its own, imported only when it is used."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from guestmark.cli.faults import PipeClosed

if TYPE_CHECKING:
    from typer.core import TyperCommand

# Verb: what it does, by what it is for. The module is `guestmark.cli.<verb>_verb`, its function `command`.
GROUPS = {
    "Measure": {
        "exec": "Measure any command on the host and in guests.",
        "ab": "Compare two kernels, QEMUs, firmwares, root filesystems or settings.",
        "tour": "See what virtualization costs here, in one to three minutes.",
        "run": "Run a plan: workloads, platforms and factors from a TOML file.",
        "boot": "Measure how guests start and end, phase by phase.",
        "powercut": "Cut the power at every moment of a guest's writes, and see what is lost.",
        "tune": "Find the fastest of many configurations that keeps to what is asked of it.",
        "fleet": "Run a plan on the machines of a lab.",
        "resume": "Continue a run where it stopped.",
        "campaign": "Compare two sides of a host over restarts, A B B A.",
        "bisect": "Find the commit that made a command slower.",
    },
    "Results": {
        "show": "Show the result of a run.",
        "runs": "List the runs in the ledger.",
        "compare": "Hold runs against each other: what differs around them, and in their ratios.",
        "history": "Follow ratios over runs, and find where they changed.",
        "gate": "Say whether a run keeps its limits: an exit status for build servers and git bisect.",
        "export": "Write a run as JSON, CSV, Parquet, Markdown or HTML, or runs as a bundle to share.",
    },
    "Machines and plans": {
        "doctor": "Find out which platforms can be used here, by booting them.",
        "plans": "List the built-in plans, or print one to edit.",
        "prepare": "Make beforehand what machines of other architectures boot.",
        "shell": "Open a shell in the very guest that would be measured.",
        "clean": "Remove what crashes have left behind.",
    },
    "Ledgers": {
        "edit": "Give a run a name, a note, labels and tags.",
        "rm": "Remove runs, or bring them back.",
        "vacuum": "Delete removed runs for good.",
        "import": "Take over runs from bundles and other ledgers.",
        "ledger": "Copy runs between ledgers, or set up a lab's server.",
    },
    "Captures": {
        "capture": "Say who is slow in a packet capture, the client or the server.",
    },
}
VERBS = {verb: does for group in GROUPS.values() for verb, does in group.items()}


class LazyGroup(TyperGroup):
    """Knows the commands by name and builds one only when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """The command of a verb, or None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"guestmark.cli.{cmd_name}_verb")
        verb = typer.Typer(rich_markup_mode=None, add_completion=False)
        verb.command(
            cmd_name, help=module.command.__doc__, context_settings=getattr(module, "SETTINGS", None)
        )(module.command)
        command: Any = typer.main.get_command(verb)
        command.name = cmd_name
        return command  # type: ignore[no-any-return]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words before the verb."""
        if args[:1] and args[0].endswith("-completion"):
            from guestmark.cli.completion import give_to_typer

            give_to_typer()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command. Raises `UsageError` suggesting the nearest one for an unknown word."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from guestmark.core.nearest import unknown

            raise unknown("verb", args[0], VERBS)
        if args[:1] == ["exec"]:
            from guestmark.cli.hyperfine import joined

            args = joined(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of verbs, without importing any of them."""
        widest = max(map(len, VERBS))
        for heading, verbs in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{verb:{widest}}", does) for verb, does in verbs.items()])

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; a reader that stopped reading is not an error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise PipeClosed from error
        return result


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from guestmark import __version__
        from guestmark.page.say import tell

        tell(f"guestmark {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measure what virtualization costs your own workload: hyperfine for hypervisors."""
