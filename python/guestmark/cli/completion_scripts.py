"""Shell completion scripts, and their installation for a user."""

from __future__ import annotations

import os
from pathlib import Path

from guestmark.core import procfs
from guestmark.core.errors import UsageError
from guestmark.page.say import say, tell

SHELLS = ("bash", "zsh", "fish")
# Only a launcher or two run between the shell and this process.
_MOST_ANCESTORS = 8


def read_completion_script(shell: str) -> str:
    """Reads the completion script for one of `SHELLS`. It asks the program itself, so it never goes stale."""
    return (Path(__file__).parent / "completions" / f"guestmark.{shell}").read_text()


def show_for_current_shell() -> None:
    """Prints the script for the shell that the program was started from. Raises `UsageError` for any other."""
    tell(read_completion_script(_find_current_shell()))


def install_for_current_shell() -> None:
    """Writes the script where the shell finds it, and adds a line to the shell's own file if the shell needs one."""
    shell, home = _find_current_shell(), Path.home()
    if shell == "bash":
        path = home / ".bash_completions" / "guestmark.sh"
        _add_line(home / ".bashrc", f"source '{path}'")
    elif shell == "zsh":
        path = home / ".zfunc" / "_guestmark"
        _add_line(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    else:
        path = home / ".config" / "fish" / "completions" / "guestmark.fish"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(read_completion_script(shell))
    say(f"completion for {shell} is installed in {path}; start a new shell to use it")


def _add_line(file: Path, line: str) -> None:
    text = file.read_text() if file.is_file() else ""
    # Installing twice must not make a shell load the script twice.
    if line not in text.splitlines():
        separator = "" if not text or text.endswith("\n") else "\n"
        file.write_text(f"{text}{separator}{line}\n")


def _find_current_shell() -> str:
    """Finds the nearest known shell among the ancestors of this process, else the login shell. Raises `UsageError`."""
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        status = procfs.read_text(Path(f"/proc/{pid}/status"))
        values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        # A login shell is called -bash.
        name = values.get("Name", "").lstrip("-")
        if name in SHELLS:
            return name
        pid = int(values.get("PPid", "0"))
        if pid == 0:
            break
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name in SHELLS:
        return name
    raise UsageError(
        "the current shell is not known", hint=f"run this from one of these shells: {', '.join(SHELLS)}"
    )
