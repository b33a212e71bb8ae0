"""The commands. Each is a module of its own, imported only when it is used."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
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
        "powercut": "Cut the power during a guest's writes, and see what is lost.",
        "tune": "Race configurations within your limits.",
        "fleet": "Run a plan on the machines of a lab.",
        "block": "Measure one block of a run, as a job of a cluster.",
        "resume": "Continue a run where it stopped, or take it further.",
        "campaign": "Compare a host before and after a restart, A B B A.",
        "bisect": "Find the commit that made a command slower.",
    },
    "Results": {
        "show": "Show the result of a run.",
        "runs": "List the runs in the ledger.",
        "compare": "Compare runs and the environments they were measured in.",
        "history": "Plot ratios over runs, and find where they changed.",
        "gate": "Check a run against limits; the exit status is for build servers.",
        "export": "Write a run as JSON, CSV, Parquet, Markdown or HTML, or runs as a bundle to share.",
    },
    "Machines and plans": {
        "doctor": "Boot every platform to see which work here.",
        "plans": "List the built-in plans, or print one to edit.",
        "prepare": "Build guests for other architectures in advance.",
        "shell": "Open a shell in the very guest that would be measured.",
        "clean": "Remove leftovers of crashes.",
        "quiet": "Make the host's speed steadier.",
    },
    "Ledgers": {
        "edit": "Give a run a name, a note, labels and tags.",
        "rm": "Remove runs, or bring them back.",
        "vacuum": "Delete removed runs for good.",
        "import": "Import runs from bundles and other ledgers.",
        "ledger": "Copy runs between ledgers, or set up a lab's server.",
    },
    "Captures": {
        "capture": "Find who is slow in a packet capture: client, server or network.",
    },
}
VERBS = {verb: does for group in GROUPS.values() for verb, does in group.items()}
# What the first screen of the help lists; the rest is reached by groups, and by its own name as well.
FIRST = (
    "exec", "ab", "run", "tune", "boot", "show", "compare", "gate", "doctor", "capture", "tour", "resume",
)  # fmt: skip
# Group: its members, each with the verb that it is.
GROUPED = {
    "runs": {name: name for name in ("block", "history", "export", "import", "edit", "rm", "vacuum")}
    | {"list": "runs"},
    "changes": {"bisect": "bisect", "campaign": "campaign"},
    "disk": {"powercut": "powercut"},
    "host": {"quiet": "quiet"},
    "guest": {"shell": "shell", "prepare": "prepare", "clean": "clean"},
}
_OWN_ACTIONS = {  # verbs with actions of their own, in the same list
    "ledger": "copy and role: share runs between ledgers, or set up a server",
    "fleet": "run a plan on the machines of a lab",
    "plans": "list the built-in plans, or print one to edit",
}
SYNONYMS = {
    "bench": "exec -- COMMAND", "benchmark": "exec -- COMMAND", "time": "exec -- COMMAND",
    "measure": "exec -- COMMAND", "list": "runs", "ls": "runs", "log": "runs", "diff": "compare RUN RUN",
    "plot": "show --html FILE", "chart": "show --html FILE", "graph": "show --html FILE",
    "report": "show --details", "html": "show --html FILE", "delete": "runs rm RUN", "remove": "runs rm RUN",
    "continue": "resume", "check": "doctor", "stats": "show --details", "help": "--help", "version": "--version",
    "ssh": "exec --on ssh:DEST -- COMMAND", "pcap": "capture FILE", "init": "doctor", "ci": "gate RUN",
    "open": "show --open", "view": "show", "share": "runs export RUN --bundle FILE",
    "bundle": "runs export RUN --bundle FILE",
    "regression": "bisect", "kernel": "ab --kernel A B -- COMMAND", "setup": "doctor", "install": "doctor",
}  # fmt: skip


def ungrouped(words: list[str]) -> list[str]:
    """The command line with the verb itself in place of a group and a member: `runs rm ID` is `rm ID`."""
    if len(words) > 1 and (verb := GROUPED.get(words[0], {}).get(words[1])):
        return [verb, *words[2:]]
    return words


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
        for param in command.params:
            if param.param_type_name == "argument":  # its name says what it is
                param.display_type_rich = _untyped
        return command  # type: ignore[no-any-return]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words before the verb."""
        if args[:1] and args[0].endswith("-completion"):
            _complete_with_own_scripts()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command. Raises `UsageError` suggesting the nearest one for an unknown word."""
        args = ungrouped(args)
        if args and args[0] in GROUPED and args[0] not in VERBS:
            _explain(args)
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            _refuse(args[0])
        if args[:1] == ["exec"]:
            from guestmark.cli.hyperfine import joined, reordered

            command: Any = self.get_command(ctx, "exec")
            options = [param for param in command.params if param.param_type_name == "option"]
            flags = {name for param in options if param.is_flag for name in param.opts}
            args = ["exec", *reordered(joined(args[1:]), flags)]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of verbs, without importing any of them."""
        widest = max(map(len, FIRST))
        with formatter.section("Commands"):
            formatter.write_dl([(f"{verb:{widest}}", VERBS[verb]) for verb in FIRST])
        groups = {group: ", ".join(sorted(members)) for group, members in GROUPED.items()} | _OWN_ACTIONS
        with formatter.section("Groups (guestmark GROUP COMMAND)"):
            formatter.write_dl([(f"{group:{widest}}", members) for group, members in groups.items()])

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; a reader that stopped reading is not an error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise PipeClosed from error
        return result


def _untyped(ctx: Any = None) -> str:
    return ""


def _explain(words: list[str]) -> None:
    """Lists a group's members if that was asked for. Raises `UsageError` for a member that it does not have."""
    from guestmark.core.errors import unknown
    from guestmark.page.say import tell

    group, *rest = words
    members = GROUPED[group]
    if rest and rest[0] not in {"-h", "--help"}:
        raise unknown(f"command of {group}", rest[0], members)
    for name, verb in members.items():
        tell(f"guestmark {group} {name:9} {VERBS[verb]}")
    raise typer.Exit


def _refuse(word: str) -> None:
    """Raises `UsageError` with what to type in place of an unknown verb."""
    from guestmark.core.errors import UsageError, unknown

    if word in SYNONYMS:
        raise UsageError(f"unknown verb {word!r}", hint=f"type: guestmark {SYNONYMS[word]}")
    raise unknown("verb", word, VERBS)


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


SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str) -> str:
    """The script that makes one of `SHELLS` complete. It asks the program itself, so it never goes stale."""
    return (Path(__file__).parent / "completions" / f"guestmark.{shell}").read_text()


def _complete_with_own_scripts() -> None:
    """Has `--install-completion` use these scripts: Typer's do not know how bash and zsh split words."""
    from typer import _completion_shared as shared

    for shell in SHELLS:
        shared._completion_scripts[shell] = completion_script(shell).replace("%", "%%")
