"""Fuzzing of what Python parses: `.venv/bin/python -m fuzz.parsers TARGET [--seconds 600] [--seed 1]`.

Seeds are mutated by bytes and by words of the format, again and again. A parser may refuse an input in its own way and
within its time; anything else is a failure, whose input is kept in `fuzz/artifacts`. Targets are in `fuzz.targets`.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from fuzz.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parent
_LONGEST_S = 5  # of processor time for one input
_LARGEST = 1 << 20
_NUMBERS = (0, 1, 2, 4, 127, 128, 255, 256, 512, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class TooLongError(BaseException):
    """One input took too long. No parser catches it."""


def mutated(data: bytes, seeds: list[bytes], target: Target, chance: random.Random) -> bytes:
    """The input with some changes; now and then a long run of them."""
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(result) + 1)
        match chance.randrange(8):
            case 0 if result:
                result[at % len(result)] ^= 1 << chance.randrange(8)
            case 1 if result:
                result[at % len(result)] = chance.randrange(256)
            case 2:
                del result[at : at + chance.choice((1, 2, 4, 8, 64, 512))]
            case 3:
                result[at:at] = chance.choice(target.words)
            case 4:
                word = chance.choice(target.words)
                result[at : at + len(word)] = word
            case 5:
                number = chance.choice(_NUMBERS).to_bytes(4, chance.choice(("little", "big")))
                size = chance.choice((1, 2, 4))
                result[at : at + size] = number[:size]
            case 6:
                begin = chance.randrange(len(result) + 1)
                result[at:at] = result[begin : begin + chance.choice((4, 16, 64, 1024))]
            case _:
                other = chance.choice(seeds)
                begin = chance.randrange(len(other) + 1)
                result[at : at + 64] = other[begin : begin + chance.choice((8, 64, 256))]
    return bytes(result[:_LARGEST])


def tried(target: Target, data: bytes) -> str:
    """What is wrong with how the input was taken; empty if nothing is."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
    try:
        target.take(data)
    except target.refusals:
        return ""
    except TooLongError:
        return f"took more than {_LONGEST_S} s"
    except Exception:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return ""


def seeds_of(name: str) -> list[bytes]:
    """The kept seeds of a target, in order."""
    return [path.read_bytes() for path in sorted((ROOT / "seeds" / name).iterdir())]


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, str]:
    """How many inputs were tried, and what the first failure was, with where its input is kept."""
    target, seeds, chance = TARGETS[name], seeds_of(name), random.Random(f"{name} {seed}")
    pool, count = list(seeds), 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        data = seeds[count] if count < len(seeds) else mutated(chance.choice(pool), seeds, target, chance)
        count += 1
        if problem := tried(target, data):
            kept = ROOT / "artifacts" / name / hashlib.sha256(data).hexdigest()[:16]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
            return count, f"{kept}:\n{problem}"
        if chance.random() < 0.05:  # changes add up
            pool.append(data)
            if len(pool) > 64 + len(seeds):
                del pool[chance.randrange(len(seeds), len(pool))]
    return count, ""


def main() -> int:
    """Fuzzes one target; exits with 1 at a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    given = parser.parse_args()
    count, problem = fuzz(given.target, given.seconds, given.seed)
    print(f"{given.target}: {count} inputs, seed {given.seed}: {problem or 'nothing found'}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
