"""The commands. Each is a module of its own, imported only when it is used."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from guestmark.cli.faults import PipeClosed
from guestmark.cli.verbs import GROUPED, SUMMARY, SYNONYMS, VERBS, first_screen, ungrouped

if TYPE_CHECKING:
    from guestmark.cli.hyperfine import Known


_GROUP = "guestmark.group"  # what stands in a verb's place on a line that a shell completes


_OF_SEVERAL = ("exec", "ab")  # verbs that take commands, and compare several
_OF_COMMANDS = (*_OF_SEVERAL, "bisect", "boot", "powercut")
_REPLAY = "replay"  # of `powercut`, which is no command


class Verb(TyperCommand):
    """A verb, none of whose options is given twice in vain, and whose help ends with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Ends the help with lines to type."""
        from guestmark.cli.examples import examples

        if lines := examples(self.name or ""):
            formatter.write("\n" + "\n".join(lines) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words after the verb. Raises `UsageError` for an option that would replace an earlier one."""
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            seen: set[str] = set()
            for param in order:
                if getattr(param, "is_flag", True) or getattr(param, "multiple", True) or param.name is None:
                    continue
                if param.name in seen:
                    _refuse_twice(param.opts)
                seen.add(param.name)
        return super().parse_args(ctx, args)


def _refuse_twice(names: list[str]) -> None:
    from guestmark.core.errors import UsageError

    raise UsageError(f"{' or '.join(names)} is given twice", hint="give it once")


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
            cmd_name,
            cls=Verb,
            help=module.command.__doc__,
            context_settings=getattr(module, "SETTINGS", None),
        )(module.command)
        command: Any = typer.main.get_command(verb)
        command.name = cmd_name
        for param in command.params:
            if param.param_type_name == "argument":  # its name says what it is
                param.display_type_rich = _untyped
                if "..." in (param.metavar or ""):  # written as the usage line has it
                    param.get_usage_pieces = partial(_as_written, param.metavar)
        return command  # type: ignore[no-any-return]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words before the verb."""
        if args[:1] and args[0].endswith("-completion"):
            _complete_with_own_scripts()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command. Raises `UsageError` suggesting the nearest one for an unknown word."""
        args = ungrouped(args)
        if args and ctx.resilient_parsing and args[0] not in VERBS:  # a shell asks what could follow
            ctx.meta[_GROUP] = args[0]
            return None, None, args
        if args and args[0] in GROUPED and args[0] not in VERBS:
            _explain(args)
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            _refuse(args)
        if args[:1] and args[0] in _OF_COMMANDS:
            from guestmark.cli import hyperfine

            verb, *words = args
            known = known_options(self.get_command(ctx, verb), ctx)
            if verb in _OF_SEVERAL:
                args = [verb, *hyperfine.reordered(words, known)]
            elif words[:1] != [_REPLAY]:
                hyperfine.check_options(words, known)
        return super().resolve_command(ctx, args)

    def _main_shell_completion(self, *arguments: Any, **more: Any) -> None:
        """Answers a shell. One line for each candidate: Typer folds its text to 80 columns, and what is below the first
        line would be a candidate too."""
        from typer import _completion_classes as classes

        classes._sanitize_help_text = _as_it_is
        super()._main_shell_completion(*arguments, **more)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The verbs and the options before them; after a group its members."""
        if (group := ctx.meta.get(_GROUP)) is None:
            return super().shell_complete(ctx, incomplete)
        return [
            typer._click.shell_completion.CompletionItem(name, help=VERBS[verb])
            for name, verb in GROUPED.get(group, {}).items()
            if name.startswith(incomplete)
        ]

    def get_help(self, ctx: Any) -> str:
        """The list of verbs, without importing any of them."""
        return first_screen()

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; a reader that stopped reading is not an error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise PipeClosed from error
        return result


def _as_it_is(text: str) -> str:
    return text


def known_options(command: Any, ctx: Any) -> Known:
    """The options of a verb by name, with those that ask for help."""
    from guestmark.cli.hyperfine import Known

    words: dict[str, int] = dict.fromkeys(ctx.help_option_names, 0)
    counts: set[str] = set()
    for param in command.params:
        if param.param_type_name == "option":
            names = {*param.opts, *param.secondary_opts}
            words |= dict.fromkeys(names, 0 if param.is_flag or param.count else param.nargs)
            if param.type_descriptor.annotation is int:
                counts |= names
    return Known(command.name, words, frozenset(counts))


def _untyped(ctx: Any = None) -> str:
    return ""


def _as_written(metavar: str, ctx: Any) -> list[str]:
    return [metavar]


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


def _refuse(words: list[str]) -> None:
    """Raises `UsageError` with what to type in place of an unknown verb, which may be a command to measure."""
    import shlex

    from guestmark.cli.hyperfine import as_texts, is_program
    from guestmark.core.errors import UsageError, unknown

    word = words[0]
    if word in SYNONYMS:
        raise UsageError(f"unknown verb {word!r}", hint=f"type: guestmark {SYNONYMS[word]}")
    if as_texts([word]):
        raise UsageError(
            f"unknown verb {word!r}", hint=f"to measure it: {shlex.join(['guestmark', 'exec', *words])}"
        )
    if is_program(word):
        line = shlex.join(["guestmark", "exec", "--", *words])
        raise UsageError(f"unknown verb {word!r}", hint=f"to measure it: {line}")
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
        from guestmark.cli.options import show_version

        show_version(wanted)


@app.callback(help=SUMMARY)
def root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Has the options that stand before the verb."""


SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str) -> str:
    """The script that makes one of `SHELLS` complete. It asks the program itself, so it never goes stale."""
    return (Path(__file__).parent / "completions" / f"guestmark.{shell}").read_text()


def _complete_with_own_scripts() -> None:
    """Has `--install-completion` use these scripts: Typer's do not know how bash and zsh split words."""
    from typer import _completion_shared as shared

    for shell in SHELLS:
        shared._completion_scripts[shell] = completion_script(shell).replace("%", "%%")
