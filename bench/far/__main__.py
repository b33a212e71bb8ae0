"""Measure what trials on a far machine cost: `python -m bench.far [--round-trip-ms 400] [--trials 4] [--seconds 0.2]`.

An sshd on loopback is behind a relay that delivers everything half a round trip later. Each line is a whole call of
guestmark, the first with a machine that has no agent yet: the duration of the call, and of each of its trials.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from guestmark.ledger import open_ledger
from tests.framework.command_line import CommandLine
from tests.framework.far import relay
from tests.framework.sshd import sshd

_CALLS = ("no agent there yet", "its agent is kept there")


def main() -> None:
    """Print two lines for each round trip."""
    parser = argparse.ArgumentParser(prog="bench.far", description=__doc__)
    parser.add_argument("--round-trip-ms", type=float, nargs="+", default=[0.0, 40.0, 400.0])
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.2)
    given = parser.parse_args()
    for way_ms in given.round_trip_ms:
        with tempfile.TemporaryDirectory() as text, sshd(Path(text)) as server:
            folder = Path(text)
            (folder / "run").mkdir()
            guestmark = CommandLine(folder / "run")
            with relay((server.address, server.port), way_ms / 2000) as way:
                config = server.config.read_text().replace(f"Port {server.port}", f"Port {way.port}")
                known = folder / "known"
                known.write_text(known.read_text().replace(f":{server.port} ", f":{way.port} "))
                server.config.write_text(config)
                guestmark.environment["GUESTMARK_SSH"] = server.client
                for call in _CALLS:
                    begin = time.monotonic()
                    done = guestmark(
                        "exec", "--on", "ssh:lab1", "--blocks", given.trials, "--iterations", 1, "--warmup", 0,
                        "--null", "none", "--", "sleep", given.seconds,
                    )  # fmt: skip
                    took = time.monotonic() - begin
                    assert done.status == 0, done.stderr
                    with open_ledger(guestmark.ledger, writable=False) as ledger:
                        trials = ledger.load_run("last").trials
                    each = ", ".join(f"{trial.duration_s:.2f}" for trial in trials)
                    measured = given.trials * given.seconds / took
                    print(
                        f"{way_ms:.0f} ms, {call}: {took:.1f} s in all, {measured:.1%} of it measuring; "
                        f"trials of {given.seconds} s took {each} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
