"""Measure what build profiles of a checkout cost and save: compiling the agent, and starting guests with it.

Run from the checkout: `.venv/bin/python -m bench.setup [--rounds 10] [--seed 1]`. Each profile is built once, from
nothing, and its processor time is shown, because wall time mostly depends on other programs. Then guests of TCG and
User-Mode Linux start with each agent, in random order. Aims: at most 30 s of two processors to compile, and no
difference in readiness.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.sidebyside import contenders_table, measure_contenders

ROOT = Path(__file__).resolve().parents[2]
TARGET = "x86_64-unknown-linux-gnu"
BUILDS = {
    "both programs, release": ("release", ()),
    "agent, release": ("release", ("--bin", "guestmark-agent", "--no-default-features")),
    "agent, checkout": ("checkout", ("--bin", "guestmark-agent", "--no-default-features")),
}
READY = """
import sys
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
cell = Cell("bench", WorkloadSpec("bench"), PlatformSpec.read(sys.argv[1]))
with registry.get_platform(sys.argv[1]).start(cell) as guest:
    print(guest.phases["ready"])
"""


def time_build(name: str, folder: Path) -> Path:
    """Compile the agent from nothing, print the time that took, and return the agent's path."""
    profile, options = BUILDS[name]
    target = folder / name.replace(" ", "-").replace(",", "")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        ["cargo", "build", "--quiet", "--locked", "--profile", profile, "--package", "guestmark-agent", *options,
         "--target", TARGET, "--target-dir", target],
        cwd=ROOT, check=True,
    )  # fmt: skip
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    agent = target / TARGET / profile / "guestmark-agent"
    print(
        f"{name:24} {spent:5.1f} s of processors, {wall:5.1f} s wall, agent {agent.stat().st_size / 1e6:.2f} MB",
        flush=True,
    )
    kept = folder / f"{profile}-{len(options)}"
    shutil.copy2(agent, kept)
    shutil.rmtree(target)
    return kept


def time_ready(platform: str, agent: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", READY, platform],
        env={**os.environ, "GUESTMARK_AGENT": str(agent)}, capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        agents = {name: time_build(name, Path(scratch)) for name in BUILDS}
        for platform in ("uml", "tcg"):
            contenders = {name: partial(time_ready, platform, agents[name]) for name in list(BUILDS)[1:]}
            values = measure_contenders(contenders, given.rounds, given.seed)
            contenders_table(f"{platform}, until the agent answers", values, ["agent, release"])


if __name__ == "__main__":
    main()
