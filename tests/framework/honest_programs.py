"""Programs that write from several threads and keep their promises: what their syncs cover has to be on the disk.

Each program is derived from a number: how many threads it has, which files they share, and what each does in which
order.
"""

import random
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = """
import ctypes, os, random, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
KEEP, PUNCH, ZERO = 1, 3, 16

def work(number, steps, files):
    chance = random.Random(number)
    for turn in range(steps):
        name = chance.choice(files)
        fd = os.open(name, os.O_CREAT | os.O_RDWR | chance.choice((0, 0, 0, os.O_DSYNC)))
        for _ in range(chance.randrange(1, 4)):
            at, length = chance.randrange(60_000), chance.randrange(1, 30_000)
            what = chance.choice({actions})
            if what == "write": os.pwrite(fd, bytes([chance.randrange(1, 256)]) * length, at)
            elif what == "append": os.write(os.open(name, os.O_WRONLY | os.O_APPEND), b"a" * length)
            elif what == "truncate": os.ftruncate(fd, at)
            elif what == "punch": libc.fallocate(fd, PUNCH, at, length)
            elif what == "zero": libc.fallocate(fd, ZERO | KEEP, at, length)
            elif what == "reserve": libc.fallocate(fd, KEEP, at, length)
            elif what == "replace":
                new = os.open(f"{{name}}.{{number}}", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
                os.write(new, bytes([number]) * length); os.fsync(new)
                os.rename(f"{{name}}.{{number}}", name); os.close(new)
        chance.choice((os.fsync, os.fsync, os.fdatasync, lambda _: os.sync()))(fd)
        os.close(fd)

threads = [threading.Thread(target=work, args=(n, {steps}, {files})) for n in range(1, {threads} + 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
_ACTIONS = ("write", "append", "truncate", "punch", "zero", "reserve", "replace")


def honest_program(number: int) -> str:
    """Return the Python source of program `number`."""
    chance = random.Random(number)
    threads = chance.randint(1, 8)
    actions = ("write", *chance.sample(_ACTIONS, chance.randint(1, 4)))
    files = [f"file{each}" for each in range(chance.randint(1, 3))]
    return _PROGRAM.format(threads=threads, steps=max(2, 16 // threads), actions=actions, files=files)


_ONE_AFTER_THE_OTHER = """
import os
top = os.getcwd()
for number, source in {sources}.items():
    os.mkdir(str(number))
    os.chdir(str(number))
    exec(compile(source, str(number), "exec"), {{}})
    os.fsync(os.open(top, os.O_RDONLY))
    os.chdir(top)
"""


def write_programs(numbers: Sequence[int], folder: Path) -> Path:
    """Write one file that runs these programs one after the other, each in a directory named by its number."""
    file = folder / f"honest{numbers[0]}.py"
    sources = {number: honest_program(number) for number in numbers}
    file.write_text(_ONE_AFTER_THE_OTHER.format(sources=repr(sources)))
    return file
