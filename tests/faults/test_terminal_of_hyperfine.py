"""The lines of hyperfine's README, typed in a terminal of 80 columns and 24 rows: the answer is on its last screen."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.framework.command_line import CommandLine

VERDICT = re.compile(
    r"times (faster|slower)|at most [\d.]+ % (faster|slower)|alike|no difference|inconclusive", re.IGNORECASE
)
FIGURE = re.compile(r"\d +(± *\d|\[\d)")  # half of an interval, or the interval
DONE = "typed-line-has-ended"
ONE, SEVERAL = False, True

LINES = [
    ("exec 'sleep 0.3'", ONE),
    ("exec --runs 5 'sleep 0.3'", ONE),
    ("exec 'hexdump file' 'od file'", SEVERAL),
    ("exec --warmup 3 'grep -R TODO *'", ONE),
    ("exec --prepare sync 'grep -R TODO *'", ONE),
    ("exec --prepare 'rm -f out' --parameter-scan threads 1 3 'sort --parallel={threads} -o out file'", SEVERAL),
    ("exec --parameter-scan delay 0.1 0.3 -D 0.1 'sleep {delay}'", SEVERAL),
    ("exec -L tool od,cksum '{tool} file'", SEVERAL),
    ("exec 'for i in $(seq 100); do echo test; done'", ONE),
    ("exec 'my_function() { sleep 0.1; }; my_function'", ONE),
    ("exec -N 'grep TODO file'", ONE),
    ("exec -n fast -n small 'gzip -kf1 file' 'gzip -kf9 file'", SEVERAL),
    ("exec --export-markdown out.md 'sleep 0.1'", ONE),
    ("exec --ignore-failure 'grep absent file'", ONE),
    ("exec 'sleep 0.1' 'sleep 0.2' 'sleep 0.3'", SEVERAL),
]  # fmt: skip


class Terminal:
    """A shell in a terminal of 80 × 24, in which lines are typed."""

    def __init__(self, socket: Path, folder: Path, environment: dict[str, str]) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        variables = [f"{name}={value}" for name, value in environment.items()]
        shell = ["env", *variables, "PS1=$ ", "bash", "--norc", "--noprofile"]
        subprocess.run(
            [*self._tmux, "new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), shlex.join(shell)],
            check=True,
        )

    def screen(self) -> str:
        return subprocess.run(
            [*self._tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True
        ).stdout

    def type(self, line: str, *, within_s: float = 120) -> str:
        """Types a line and returns the screen when it has ended, with how it ended in its last line."""
        self._press(f"clear; {line}; echo {DONE}=$?")
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if re.search(rf"^{DONE}=\d+$", screen := self.screen(), re.MULTILINE):
                return screen
            time.sleep(0.2)
        raise AssertionError(f"{line} did not end within {within_s} s:\n{self.screen()}")

    def _press(self, line: str) -> None:
        subprocess.run([*self._tmux, "send-keys", "-l", line], check=True)
        subprocess.run([*self._tmux, "send-keys", "Enter"], check=True)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(guestmark: CommandLine, tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "file").write_text("one TODO\nand another line\n" * 20_000)
    program = tmp_path / "bin" / "guestmark"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m guestmark "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{guestmark.environment['PATH']}"
    opened = Terminal(tmp_path / "tmux", folder, {**guestmark.environment, "PATH": path})
    yield opened
    opened.close()


@pytest.mark.long
@pytest.mark.parametrize(("line", "several"), LINES)
def test_the_answer_is_on_the_last_screen(terminal: Terminal, line: str, several: bool) -> None:
    screen = terminal.type(f"guestmark {line}")
    assert f"{DONE}=0" in screen, screen
    rows = [row for row in screen.splitlines() if row.strip()]
    assert any(FIGURE.search(row) for row in rows), screen
    assert "more: guestmark show --details" in screen
    if several:
        assert "baseline" in screen
        assert VERDICT.search(screen), screen
    else:
        assert "mean ± σ" in screen
        assert "min … max" in screen
        assert "user" in screen
        assert "system" in screen
