"""Measure how fast a file gets into a disk image: by guestmark, by guestfish, and by `cp` on the host.

Run from the checkout: `.venv/bin/python -m bench.upload [--size 1500M] [--rounds 3] [--on tcg,uml] [--direct] [--slow]
[--whole]`. The file goes into ext2 on a raw sparse 2 GB image in shared memory; every contender runs once a round, in
random order, on a fresh machine and a fresh image. Times include the flushes in the guest and of the image; the file
that arrived is checksummed.

* guestfish upload, guestfish dd: the real guestfish, launch excluded; dd is its `copy-device-to-file`.
* upload, dd, direct: guestmark's workloads; under UML, `direct` runs on both kinds of disk that it has. UML's upload
  takes minutes, because it uses a serial line, so it runs only with `--slow`.
* cp: the host's own cp into shared memory, fsync included. It hands pages over inside the kernel (`copy_file_range`),
  so each byte is copied once.
* host direct: the guests' program on the host itself. Each byte is copied twice, into memory and out of it, as disks
  of guests do. With `--direct` only this, cp and the guests' `direct` run.

Aims: `direct` at least 0.8 times as fast as cp, under TCG at least 10 times as fast as guestfish's upload; `upload` at
least 1.5 times as fast as guestfish's. A 2 GB formatted image is made in at most 50 ms after the first. `--whole` also
runs the plan `upload` at a scale of 0.05 with 3 blocks: at most 6 minutes, of which at least 60 % are starting or
measuring.
"""

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.core import registry as kinds
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import parse_size
from guestmark.disks.image import make_images
from guestmark.disks.scratch import get_scratch_store
from guestmark.platforms import registry
from guestmark.setting.disk import Disks, DiskSpec, Role
from guestmark.workloads import base as workloads

_FACTORS = {"filesystem": "ext2", "size": "2G"}
_LOCATION = "/dev/shm"


def _cell(platform: str, kind: str, factors: Mapping[str, str] | None = None, **params: Any) -> Cell:
    known = kinds.workload_kind(kind)
    spec = WorkloadSpec(kind, known.check_params(params))
    disk = {} if platform == "host" else {**_FACTORS, **(factors or {})}
    return Cell(f"{kind} {platform}", spec, PlatformSpec.read(platform), disk)


def _time_trial(cell: Cell) -> float:
    """Measure once on a fresh machine; returns the workload's `wall_s`."""
    plan = Plan("bench", (cell,), Policy(trial_limit_s=3600.0), ())
    started = workloads.choose_started_cell(cell)
    with registry.get_platform(started.platform).start(started) as machine:
        workload = workloads.create_trial(plan, cell)
        try:
            workload.prepare(machine)
            measured = {one.metric.name: one.value for one in workload.run(machine)}
        finally:
            workload.cleanup(machine)
    return measured["wall_s"]


def _time_cp(source: Path) -> float:
    with tempfile.TemporaryDirectory(
        prefix="guestmark-bench-", dir=get_scratch_store().directory(_LOCATION)
    ) as scratch:
        target = Path(scratch, "copy")
        subprocess.run(["sync"], check=True)
        begin = time.monotonic()
        subprocess.run(["cp", str(source), str(target)], check=True)
        with target.open("rb") as stream, contextlib.suppress(OSError):
            os.fsync(stream.fileno())
        return time.monotonic() - begin


def _preparation(rounds: int = 10) -> list[float]:
    """Return the milliseconds for an image of the bench's kind, without the first."""
    (spec,) = _cell("tcg", "fill", amount="1M").view(Disks)
    times = []
    for _ in range(rounds + 1):
        begin = time.monotonic()
        with make_images([spec]):
            times.append((time.monotonic() - begin) * 1e3)
    return times[1:]


def _whole() -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "guestmark", "run", "upload", "--scale", "0.05", "--blocks", "3", "--on", "tcg,uml",
             "--ledger", f"{scratch}/ledger.db"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    wall_s = time.monotonic() - begin
    spent = re.search(r"^Time spent.*$", done.stdout, re.MULTILINE)
    print(
        f"run upload --scale 0.05 --blocks 3 --on tcg,uml: {wall_s / 60:.1f} min (aim ≤ 6), exit {done.returncode}"
    )
    print(spent.group() if spent else done.stderr[-500:], "(aim: at least 60 % starting and measuring)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1500M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--content", choices=("zero", "one", "random"), default="zero")
    parser.add_argument("--on", default="tcg,uml")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    what = {"amount": arguments.size, "content": arguments.content}
    platforms = arguments.on.split(",")
    contenders: dict[str, Callable[[], float]] = {
        "host direct": partial(_time_trial, _cell("host", "direct", **what))
    }
    for platform in platforms:
        for kind in ("direct",) if arguments.direct else ("upload", "dd", "direct"):
            if platform != "uml" or kind != "upload" or arguments.slow:
                contenders[f"{platform} {kind}"] = partial(_time_trial, _cell(platform, kind, **what))
        if platform == "uml" and shutil.which("qemu-storage-daemon"):
            cell = _cell(platform, "direct", {"uml_disk": "vhost-user"}, **what)
            contenders["uml direct, vhost-user"] = partial(_time_trial, cell)
        if platform != "uml" and not arguments.direct and shutil.which("guestfish"):
            for name, method in (("upload", "upload"), ("dd", "copy")):
                cell = _cell(platform, "guestfish", method=method, **what)
                contenders[f"{platform} guestfish {name}"] = partial(_time_trial, cell)
    if not shutil.which("guestfish"):
        print("guestfish is not installed: its rows are missing (package guestfish)")
    spec = DiskSpec.from_levels(Role.SOURCE, parse_size(arguments.size), content=arguments.content)
    with make_images([spec]) as (source,):
        source.checksum()
        contenders["cp"] = partial(_time_cp, source.path)
        for name in ("cp", f"{platforms[0]} direct"):
            contenders[name]()  # what is made once is made now
        values = measure_contenders(contenders, arguments.rounds, arguments.seed)
    beside = ["cp", *(name for name in contenders if name.endswith("guestfish upload"))]
    contenders_table(
        f"{arguments.size} into ext2 on raw in shared memory, {arguments.rounds} rounds", values, beside
    )
    for name in [name for name in contenders if " direct" in name]:
        platform, direct = name.split()[0], values[name]
        peer = values.get(f"{platform} guestfish upload")
        if peer is not None:
            sent = values[f"{platform} upload"]
            print(f"{platform} direct: {median_ratio(peer, direct):.1f} times guestfish upload (aim ≥ 10)")
            print(f"{platform} upload: {median_ratio(peer, sent):.2f} times guestfish upload (aim ≥ 1.5)")
        print(f"{name}: {median_ratio(values['cp'], direct):.2f} of cp (aim ≥ 0.8)")
    print(f"a formatted 2 GB image: {statistics.median(_preparation()):.1f} ms (aim ≤ 50)")
    if arguments.whole:
        _whole()


if __name__ == "__main__":
    main()
