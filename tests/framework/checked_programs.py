"""Programs that acknowledge what they write, and checks of the disk after a cut, as users would write both."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

# Arguments: how each number is made durable, and how many. A line for each; what else it says goes to standard error.
_WRITER = """
import os, sys
how, count = sys.argv[1], int(sys.argv[2])
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.fsync(os.open(".", os.O_RDONLY))
for number in range(count):
    os.write(data, b"%08d\\n" % number)
    print("about to write", number + 1, file=sys.stderr, flush=True)
    if how == "safe":
        os.fsync(data)
    print(number, flush=True)
    sys.stdin.readline()
"""
_CHECK = """
import sys
wanted = {int(line) for line in sys.stdin if line.strip()}
there = {int(word) for word in open("data").read().split() if word.isdigit()}
if not wanted <= there:
    print("it holds", len(there))
    sys.exit("%d is missing" % min(wanted - there))
"""


@dataclass(frozen=True)
class Programs:
    """Writes the programs of a test into its folder."""

    folder: Path

    @property
    def check(self) -> str:
        """A command that fails if an acknowledged number is missing."""
        return self.script("check.py", _CHECK)

    def script(self, name: str, text: str) -> str:
        """Write a Python program, and return the command that runs it."""
        path = self.folder / name
        path.write_text(text)
        return f"{sys.executable} -I -S {path}"

    def shell(self, name: str, text: str) -> str:
        """Write a shell script, and return the command that runs it."""
        path = self.folder / name
        path.write_text(text)
        return f"sh {path}"

    def writer(self, how: str, count: int = 8) -> list[str]:
        """Return the arguments that run a writing program, which is `safe` or `careless`."""
        return [*shlex.split(self.script("writer.py", _WRITER)), how, str(count)]
