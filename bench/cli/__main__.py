"""Time how quickly the command line answers, compared with another checkout and with hyperfine.

Run from the checkout: `.venv/bin/python -m bench.cli [--against DIR] [--rounds 20] [--seed 1]`. Every call is a new
process of the checkout's own `./guestmark`; each call is made once a round, in random order, so that other work on the
host disturbs both checkouts alike. Aims: `--version` at most 0.1 s, `--help` 0.15 s, `show` of a run with 400 trials
0.8 s.

If hyperfine is installed, both measure the same commands: `-r 10 'sleep 0.01'`, for which processor time is compared
(aim: 0.3 s more than hyperfine's), and `'sleep 0.3'`, for which the duration is compared (aim: 1.2 times hyperfine's).
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.sidebyside import Contender, contenders_table, measure_contenders, median_ratio, output

HERE = Path(__file__).parents[2]
CELLS, BLOCKS = 4, 100  # 400 trials
AIMS_S = {"--version": 0.1, "--help": 0.15, "show": 0.8}

PEER = "hyperfine"
SHORT, LONGER = ("-r", "10", "sleep 0.01"), ("sleep 0.3",)
MORE_PROCESSOR_S, RATIO = 0.3, 1.2


def time_call(checkout: Path, *arguments: str) -> float:
    """Return the seconds until `./guestmark` has printed everything and exited."""
    command = [str(checkout / "guestmark"), *arguments]
    begin = time.monotonic()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.monotonic() - begin


def count_processor_time(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds of processor time that a command and all of its processes took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_command(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds that a command took."""
    begin = time.monotonic()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=environment)
    return time.monotonic() - begin


def compare_with_peer(folder: str, rounds: int, seed: int) -> None:
    """Print what guestmark and hyperfine take for the same commands, with their ratios."""
    environment = {**os.environ, "GUESTMARK_LEDGER": os.path.join(folder, "peer.sqlite")}
    for name, arguments, measure in (
        ("processor time", SHORT, count_processor_time),
        ("duration", LONGER, time_command),
    ):
        contenders: dict[str, Contender] = {
            "guestmark": partial(measure, [str(HERE / "guestmark"), "exec", *arguments], environment),
            PEER: partial(measure, [PEER, *arguments], environment),
        }
        values = measure_contenders(contenders, rounds, seed)
        contenders_table(f"{name} of {' '.join(arguments)}", values, [PEER], "ms")
        if measure is count_processor_time:
            more = statistics.median(a - b for a, b in zip(*values.values(), strict=True))
            met = "met" if more <= MORE_PROCESSOR_S else "missed"
            output().print(
                f"{more * 1e3:.0f} ms more than {PEER}, aim {MORE_PROCESSOR_S * 1e3:.0f} ms: {met}",
                highlight=False,
            )
        else:
            ratio = median_ratio(values["guestmark"], values[PEER])
            met = "met" if ratio <= RATIO else "missed"
            output().print(f"{ratio:.2f} of {PEER}, aim {RATIO}: {met}", highlight=False)


def make_ledger(checkout: Path, folder: str) -> str:
    """Make a ledger with one run of 400 trials by the checkout itself, as versions may store runs differently."""
    ledger = os.path.join(folder, f"{checkout.name}-{os.urandom(4).hex()}.sqlite")
    once = ["--blocks", str(BLOCKS), "--warmup", "0", "--iterations", "1", "--seed", "1"]
    time_call(checkout, "exec", "--ledger", ledger, "--on", ",".join(["host"] * CELLS), *once, "--", "true")
    return ledger


def list_contenders(checkout: Path, mark: str, folder: str) -> dict[str, Contender]:
    """List the calls of one checkout."""
    show = ("show", "last", "--ledger", make_ledger(checkout, folder))
    calls = {"--version": ("--version",), "--help": ("--help",), "show": show}
    for arguments in calls.values():
        time_call(checkout, *arguments)  # compiles what was changed
    return {f"{name}{mark}": partial(time_call, checkout, *arguments) for name, arguments in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cli")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, set up")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer-rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as folder:
        ours = list_contenders(HERE, "", folder)
        other = list_contenders(options.against.resolve(), " before", folder) if options.against else {}
        values = measure_contenders(ours | other, options.rounds, options.seed)
        if shutil.which(PEER):
            compare_with_peer(folder, options.peer_rounds, options.seed)
    load = os.getloadavg()[0]
    contenders_table(
        f"{options.rounds} rounds, load {load:.1f} on {os.cpu_count()} processors", values, [], "ms"
    )
    for name, aim in AIMS_S.items():
        median, best = statistics.median(values[name]), min(values[name])
        beside = f", {median_ratio(values[name], values[f'{name} before']):.3f} of before" if other else ""
        met = "met" if median <= aim else "met by the quickest only" if best <= aim else "missed"
        output().print(
            f"{name}: {median * 1e3:.0f} ms, aim {aim * 1e3:.0f} ms: {met}{beside}", highlight=False
        )


if __name__ == "__main__":
    main()
