"""The program as a group of commands, each of which is built only when it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from guestmark.cli import completion_scripts, hyperfine
from guestmark.cli.parser import Verb, build_command, collect_known_options
from guestmark.cli.verbs import (
    GROUPED,
    SUMMARY,
    VERBS,
    describe_version,
    render_first_screen,
    replace_group,
)
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.page.say import tell

# Key in `click.Context.meta` of the group of verbs whose members are being completed.
_GROUP = "guestmark.group"
# Verbs that take commands: those of the first line compare several.
_OF_SEVERAL = ("exec", "ab")
_OF_COMMANDS = (*_OF_SEVERAL, "bisect", "boot", "powercut")
# `powercut replay` takes a log, not a command.
_REPLAY = "replay"
# If a verb lacks an option, at most this many verbs that have it are named.
_MOST_OWNERS = 3
# The option that fits a plan into a given time, and the one that ends any other measurement after it.
_FOR, _TIME_LIMIT = "--for", "--time-limit"


class Program(click.Group):
    """The verbs by name and by group; a command is built only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Lists the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Verb | None:
        """Builds the command of a verb; None if there is no such verb."""
        return build_command(cmd_name) if cmd_name in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command. Raises `UsageError` suggesting the nearest one for an unknown word."""
        args = replace_group(args)
        first, rest = args[0], args[1:]
        if first in VERBS:
            command = build_command(first)
            return first, command, _order_words(command, rest)
        if ctx.resilient_parsing:
            # A shell asks for completions.
            ctx.meta[_GROUP] = first
            return None, None, args
        if first in GROUPED:
            _list_group(first, rest)
        if not first.startswith("-"):
            # The module lists plans, which a line with a verb does not need.
            from guestmark.cli.verb_advice import refuse_verb

            refuse_verb(args)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the verbs and the options before them; after a group its members."""
        group = ctx.meta.get(_GROUP)
        if group is not None:
            members = GROUPED.get(group, {})
            return _complete_word({name: VERBS[verb] for name, verb in members.items()}, incomplete)
        # Click's own completion would build every command to ask for its help.
        return _complete_word(VERBS, incomplete) + click.Command.shell_complete(self, ctx, incomplete)

    def get_help(self, ctx: click.Context) -> str:
        """Renders the list of verbs, without importing any of them."""
        return render_first_screen()


def _order_words(command: Verb, words: list[str]) -> list[str]:
    """Puts the words after a verb into the parser's order. Raises `UsageError` for a line with two readings."""
    if command.name in _OF_SEVERAL:
        return hyperfine.put_options_first(words, collect_known_options(command))
    if command.name in _OF_COMMANDS and words[:1] != [_REPLAY]:
        hyperfine.check_options(words, collect_known_options(command))
    return words


def _list_group(group: str, words: list[str]) -> None:
    """Lists a group's members unless a word follows. Raises `UsageError` for a member that it does not have."""
    members = GROUPED[group]
    if words and words[0] not in {"-h", "--help"}:
        raise make_unknown_name_error(f"command of {group}", words[0], members)
    for name, verb in members.items():
        tell(f"guestmark {group} {name:9} {VERBS[verb]}")
    raise click.exceptions.Exit


def _make_flag(*names: str, help: str, act: Callable[[], None]) -> click.Option:  # noqa: A002 - as Click calls it
    """Makes an option that precedes the verb, calls `act`, and ends the program."""

    def callback(ctx: click.Context, _parameter: click.Parameter, wanted: Any) -> None:
        if wanted and not ctx.resilient_parsing:
            act()
            ctx.exit()

    return click.Option(names, is_flag=True, is_eager=True, expose_value=False, help=help, callback=callback)


app = Program(
    "guestmark",
    help=SUMMARY,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        _make_flag(
            "--version", "-V", help="Show the version and exit.", act=lambda: tell(describe_version())
        ),
        _make_flag(
            "--install-completion",
            help="Install completion for the current shell.",
            act=completion_scripts.install_for_current_shell,
        ),
        _make_flag(
            "--show-completion",
            help="Show completion for the current shell, to copy or adapt it.",
            act=completion_scripts.show_for_current_shell,
        ),
    ],
)


def run_command_line(words: list[str]) -> int:
    """Parses the words after the program's name, runs the command, and returns its exit status. Raises `UsageError`."""
    try:
        with app.make_context("guestmark", words) as context:
            return app.invoke(context) or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        raise _explain_mistake(error) from error


def _complete_word(helps: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    items = []
    for word, described in helps.items():
        if word.startswith(incomplete):
            items.append(CompletionItem(word, help=described))
    return items


def _explain_mistake(error: click.UsageError) -> UsageError:
    """Describes the parser's error in our own words."""
    name = getattr(error, "option_name", "")
    # Click suggests similar names for some kinds of mistakes only.
    nearest = getattr(error, "possibilities", None) or ()
    message = f"no such option: {name}" if isinstance(error, click.NoSuchOption) else error.format_message()
    # Click sets a list of choices on lines of their own.
    message = " ".join(message.split()).rstrip(".")
    message = message[0].lower() + message[1:]
    if replacement := hyperfine.REPLACEMENTS.get(name):
        return UsageError(message, hint=replacement)
    command = error.ctx.command_path if error.ctx else _find_requested_command()
    hint = f"{command} --help lists its options and arguments"
    if isinstance(error, click.NoSuchOption) and (elsewhere := _describe_owners(error)):
        # The name is right, but other verbs have it: similarly spelled options would mislead.
        return UsageError(message, hint=f"{elsewhere}; {hint}")
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        hint = f"{error.param.metavar}: {str(error.param.help).rstrip('.')}; {hint}"
    if nearest:
        hint = f"did you mean {' or '.join(nearest)}? {hint}"
    return UsageError(message, hint=hint)


def _describe_owners(error: click.NoSuchOption) -> str:
    """Describes which verbs have the option that the typed verb lacks; empty if none has it."""
    owners = [verb for verb in VERBS if error.option_name in _list_option_names(build_command(verb))]
    if not owners:
        return ""
    others = f" and {len(owners) - _MOST_OWNERS} others" if len(owners) > _MOST_OWNERS else ""
    described = f"{error.option_name} belongs to {', '.join(owners[:_MOST_OWNERS])}{others}"
    verb = error.ctx.command if error.ctx else None
    if error.option_name == _FOR and verb is not None and _TIME_LIMIT in _list_option_names(verb):
        described = f"use {_TIME_LIMIT} here; {described}"
    return described


def _list_option_names(command: click.Command) -> set[str]:
    names: set[str] = set()
    for option in command.params:
        if isinstance(option, click.Option):
            names.update(option.opts)
    return names


def _find_requested_command() -> str:
    """Returns the command whose help was requested, without further words."""
    return " ".join(["guestmark", *(word for word in sys.argv[1:2] if word in VERBS)])
