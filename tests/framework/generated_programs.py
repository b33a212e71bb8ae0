"""Programs of random calls on a few files, some of which sync everything in the end, and checks of what they leave."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path

_CALLS = """
import mmap, os, sys

def write(path, size, fill, flags=0):
    file = os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o644)
    os.write(file, fill.encode() * size)
    os.close(file)

def overwrite(path, at, size, fill):
    if os.path.exists(path):
        file = os.open(path, os.O_RDWR)
        os.pwrite(file, fill.encode() * size, at)
        os.close(file)

def mapped(path, fill, synced):
    if os.path.exists(path) and os.path.getsize(path):
        with open(path, "r+b") as file:
            view = mmap.mmap(file.fileno(), 0)
            view[:] = fill.encode() * len(view)
            if synced:
                view.flush()
            view.close()

def sync(path, call=os.fsync):
    if os.path.exists(path):
        file = os.open(path, os.O_RDONLY)
        call(file)
        os.close(file)

def rename(old, new):
    if os.path.exists(old):
        os.rename(old, new)

def link(old, new):
    if os.path.exists(old) and not os.path.exists(new):
        os.link(old, new)

def remove(path):
    if os.path.exists(path):
        os.unlink(path)

def cut(path, size):
    if os.path.exists(path):
        os.truncate(path, size)

def copy(old, new):
    if os.path.exists(old):
        with open(old, "rb") as source, open(new, "wb") as target:
            os.copy_file_range(source.fileno(), target.fileno(), 1 << 20)

os.makedirs("d", exist_ok=True)
"""
_END = """
if len(sys.argv) > 1:
    print("done", flush=True)
    sys.stdin.readline()
"""
_CHECK = """
import json, os, sys
if not sys.stdin.read().strip():
    sys.exit(0)
wanted = json.loads({wanted!r})
there = {{}}
for folder, _, names in os.walk("."):
    for name in names:
        path = os.path.normpath(os.path.join(folder, name))
        if not path.startswith("lost+found"):
            there[path] = open(path, "rb").read().hex()
for path in sorted(wanted.keys() | there.keys()):
    if wanted.get(path) != there.get(path):
        sys.exit(f"{{path}} is {{'there' if path not in wanted else 'another or missing'}}")
"""
_NAMES = ("a", "b", "d/a", "d/b")


def calls(seed: int, *, complete: bool = False) -> list[str]:
    """Return a program's calls, each a line of Python; with `complete`, the last ones sync each file and directory."""
    generator = random.Random(seed)

    def name() -> str:
        return repr(generator.choice(_NAMES))

    def call() -> str:
        fill, size = repr(generator.choice("xyz")), generator.choice((1, 500, 4096, 9000))
        kinds = (
            f"write({name()}, {size}, {fill})", f"write({name()}, {size}, {fill}, os.O_APPEND)",
            f"write({name()}, {size}, {fill}, os.O_TRUNC)", f"write({name()}, {size}, {fill}, os.O_DSYNC)",
            f"write({name()}, {size}, {fill}, os.O_SYNC)", f"overwrite({name()}, {size // 2}, {size}, {fill})",
            f"mapped({name()}, {fill}, {generator.random() < 0.5})", f"sync({name()})", f"sync({name()})",
            f"sync({name()}, os.fdatasync)", f"sync({generator.choice(('.', 'd'))!r})", f"rename({name()}, {name()})",
            f"link({name()}, {name()})", f"remove({name()})", f"cut({name()}, {size // 3})",
            f"copy({name()}, {name()})",
        )  # fmt: skip
        return generator.choice(kinds)

    made = [call() for _ in range(generator.randint(3, 10))]
    made.insert(0, "write('a', 5000, 'i')")
    end = 1 if complete else generator.randrange(4)
    if end == 0:
        made.append("os.sync()")
    elif end < 3:  # every file and directory, of which one may be forgotten
        last = [f"sync({path!r})" for path in (*_NAMES, "d", ".")]
        if end == 2:
            last.remove(generator.choice(last))
        made += last
    return made


def write_generated(seed: int, folder: Path) -> tuple[Path, list[str]]:
    """Write the program, which prints `done` if it gets an argument; return its path and its calls."""
    made = calls(seed)
    program = folder / f"generated-{seed}.py"
    program.write_text(f"{_CALLS}{chr(10).join(made)}\n{_END}")
    return program, made


def write_combined(seeds: Iterable[int], folder: Path) -> Path:
    """Write one program that does what several complete programs do, each in its own directory.

    So one machine is enough for all of them.
    """
    body = []
    for seed in seeds:
        body += [
            f"os.makedirs('of-{seed}/d')", f"os.chdir('of-{seed}')", *calls(seed, complete=True), "os.chdir('..')",
        ]  # fmt: skip
    program = folder / "combined.py"
    # The directories themselves are names, too.
    program.write_text(f"{_CALLS}{chr(10).join(body)}\nos.rmdir('d')\nsync('.')\n{_END}")
    return program


def write_check(seed: int, folder: Path, left: Path) -> str:
    """Write a check that requires all files that the program has left in a directory; return its command."""
    wanted = {
        str(path.relative_to(left)): path.read_bytes().hex()
        for path in sorted(left.rglob("*"))
        if path.is_file()
    }
    check = folder / f"check-{seed}.py"
    check.write_text(_CHECK.format(wanted=json.dumps(wanted)))
    return f"{sys.executable} -I -S {check}"
