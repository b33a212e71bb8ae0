"""The scripts that make shells complete: guestmark's own, as Typer's do not know how bash and zsh split words."""

from __future__ import annotations

from pathlib import Path

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """The script for one of `SHELLS`. It asks the program itself, so it never goes stale."""
    return (Path(__file__).parent / "completions" / f"guestmark.{shell}").read_text()


def give_to_typer() -> None:
    """Has `--install-completion` and `--show-completion` use these scripts."""
    from typer import _completion_shared as shared

    for shell in SHELLS:
        shared._completion_scripts[shell] = script(shell).replace("%", "%%")
