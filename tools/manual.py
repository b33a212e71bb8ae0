"""Makes the manual page and the completions of shells from the same objects as `--help`.

`python -m tools.manual DIR` writes below DIR, laid out as below /usr: share/man/man1/guestmark.1 and the completions of
bash, zsh and fish. Wheels carry them (tools/package). A checkout has them in `share`, where `man` finds the page of a
program in PATH.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "guestmark"
COMPLETIONS = {
    "bash": "share/bash-completion/completions/guestmark",
    "zsh": "share/zsh/site-functions/_guestmark",
    "fish": "share/fish/vendor_completions.d/guestmark.fish",
}
PAGE = "share/man/man1/guestmark.1"
FILES = (
    ("~/.local/share/guestmark/ledger.sqlite", "The ledger: every run, with every trial."),
    ("~/.cache/guestmark", "Kernels and disk templates made ready; may be deleted."),
)
VARIABLES = (
    ("GUESTMARK_LEDGER", "The ledger to use when --ledger is not given."),
    ("NO_COLOR", "No colours on the terminal."),
    ("GITHUB_STEP_SUMMARY", "A file to which a table of gates is appended."),
)


def render_page() -> str:
    """Render the manual page in the macros of man(7)."""
    return "\n".join(_page_lines()) + "\n"


def _page_lines() -> Iterator[str]:
    import click

    from guestmark import __version__
    from guestmark.cli.app import app
    from guestmark.cli.verbs import SUMMARY, VERBS

    parent = click.Context(app, info_name=NAME)
    yield f'.TH GUESTMARK 1 "" "guestmark {__version__}" "User Commands"'
    yield from (".SH NAME", f"{NAME} \\- {escape_roff(SUMMARY.rstrip('.'))}")
    yield from (".SH SYNOPSIS", f".B {NAME}", ".I COMMAND", "[ARGUMENTS]")
    yield ".SH COMMANDS"
    for verb in VERBS:
        yield from _verb_section(verb, app.get_command(parent, verb), parent)
    for title, rows in (("ENVIRONMENT", VARIABLES), ("FILES", FILES)):
        yield f".SH {title}"
        for name, text in rows:
            yield from (".TP", f".B {escape_roff(name)}", escape_roff(text))


def _verb_section(verb: str, command: Any, parent: Any) -> Iterator[str]:
    from guestmark.cli.examples import EXAMPLES

    context = command.make_context(
        verb, [], parent=parent, resilient_parsing=True, help_option_names=["-h", "--help"]
    )
    yield f".SS {escape_roff(command.get_usage(context).removeprefix('Usage: '))}"
    for paragraph in (command.help or "").strip().split("\n\n"):
        yield from (".PP", escape_roff(" ".join(paragraph.split())))
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            declaration, text = record
            yield from (".TP", f".B {escape_roff(declaration)}", escape_roff(" ".join(text.split())))

    if rows := EXAMPLES.get(verb):
        yield from (".PP", "Examples:")
        for line, what in rows:
            yield from (".TP", f".B {NAME} {escape_roff(line)}", escape_roff(what))


def escape_roff(text: str) -> str:
    """Escape a text for groff: no line begins with a request, and hyphens of options stay hyphens."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def write_files(folder: Path) -> list[Path]:
    """Write everything below `folder`; returns the files."""
    from guestmark.cli.completion_scripts import read_completion_script

    texts = {
        PAGE: render_page(),
        **{path: read_completion_script(shell) for shell, path in COMPLETIONS.items()},
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return [folder / path for path in texts]


if __name__ == "__main__":
    for file in write_files(Path(sys.argv[1])):
        print(file)
