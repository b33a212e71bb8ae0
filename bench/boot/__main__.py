"""Time how long guests take to start and to stop: guestmark, libguestfs and virtme-ng on the same accelerator.

Run from the checkout: `.venv/bin/python -m bench.boot [--rounds 10] [--seed 1] [--virtme-run PATH] [--nested 3]`. Every
contender runs once a round, in random order, with the distribution's kernel on TCG. Aims: ready at most 0.30 of
libguestfs's launch; a guest inside a guest (tcg/kvm) ready within 8 s of its hypervisor's start.

* boot: hypervisor started → the agent's hello, as any guest of guestmark's starts.
* boot, watched: the same with the lines from which phases are read; the difference from `boot` is their cost.
* boot … gone: the same, on to the end of the hypervisor's process.
* guestfish run: guestfish started → its guest launched, its appliance built beforehand; … closed: on to its end.
* virtme-ng: `virtme-run` started → the first line of a script in its guest, which shares the host's root too; … gone:
  on to its end. It is not installed with guestmark: put it into an environment of its own (pip install virtme-ng).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.sidebyside import Contender, contenders_table, measure_contenders, median_ratio

from guestmark.appliance.kernel import find_kernel
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import libguestfs, registry
from guestmark.workloads.guestfs import guestfish
from guestmark.workloads.guestfs.guestfish import Mark

_READY = "virtme-ng-is-ready"
_LIMIT_S = 300.0


class Starts:
    """Each method measures one start of a kind of guest; the time to the guest's end is kept as well."""

    def __init__(self) -> None:
        self.ends: dict[str, list[float]] = {}

    def ours(self, platform: str, *, watched: bool = False, memory: str = "1G") -> float:
        """Start a guest of ours; return the seconds until it is ready."""
        spec = WorkloadSpec("boot", {"watch": {}} if watched else {})
        cell = Cell("bench", spec, PlatformSpec.read(platform), {"memory": memory})
        with registry.get_platform(platform).start(cell) as guest:
            ready = guest.phases["ready"]
            guest.shut_down(30.0)  # type: ignore[attr-defined]
        if not watched:
            self.ends.setdefault(f"{platform} … gone", []).append(guest.phases["gone"])
        return ready

    def guestfish(self) -> float:
        """Start libguestfs's guest; return the seconds until it is launched."""
        timeline = guestfish.run("tcg", ["add /dev/null", "run", Mark("launched"), "shutdown"], _LIMIT_S)
        self.ends.setdefault("guestfish run … closed", []).append(timeline.ended_at - timeline.started_at)
        return timeline.marks["launched"] - timeline.started_at

    def virtme(self, program: str, image: Path) -> float:
        """Start virtme-ng's guest; return the seconds until its script's first line."""
        command = [program, "--kimg", str(image), "--mods", "auto", "--disable-kvm", "--memory", "1G", "--cpus", "1",
                   "--script-sh", f"echo {_READY}"]  # fmt: skip
        begin = time.monotonic()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            said, ready = b"", None
            while chunk := os.read(process.stdout.fileno(), 4096):
                said += chunk
                if ready is None and _READY.encode() in said:
                    ready = time.monotonic() - begin
        self.ends.setdefault("virtme-ng … gone", []).append(time.monotonic() - begin)
        if ready is None:
            sys.exit(f"virtme-ng did not start its guest: {said[-500:].decode(errors='replace')}")
        return ready


@contextmanager
def _virtme_kernel() -> Iterator[Path]:
    """Yield the kernel that our and libguestfs's guests boot, at a path where virtme-ng also finds its modules."""
    kernel = find_kernel()
    # Makes the modules' index, where the host has none.
    tree = libguestfs.prepare("tcg").get("SUPERMIN_MODULES", f"/lib/modules/{kernel.release}")
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as scratch:
        image = Path(scratch, "boot", f"vmlinuz-{kernel.release}")
        modules = Path(scratch, "lib", "modules", kernel.release)
        image.parent.mkdir()
        modules.parent.mkdir(parents=True)
        shutil.copyfile(kernel.image, image)
        modules.symlink_to(tree)
        yield image


def _time_nested_start(starts: Starts, platforms: list[str], rounds: int, seed: int) -> None:
    contenders: dict[str, Contender] = {
        name: lambda name=name: starts.ours(name, memory="256M")  # type: ignore[misc]
        for name in platforms
    }
    values = measure_contenders(contenders, rounds, seed)
    contenders_table(f"a guest inside a guest, from its own hypervisor's start, {rounds} rounds", values, [])
    for name in platforms:
        aim = "   (aim ≤ 8 s)" if name == "tcg/kvm" else ""
        print(f"{name} ready   {median(values[name]):.2f} s{aim}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--virtme-run", default=shutil.which("virtme-run"), help="virtme-ng's program")
    parser.add_argument("--nested", type=int, default=3, help="rounds of nested guests; 0 for none")
    arguments = parser.parse_args()
    starts = Starts()
    contenders: dict[str, Contender] = {
        "tcg": lambda: starts.ours("tcg"),
        "tcg, watched": lambda: starts.ours("tcg", watched=True),
        "uml": lambda: starts.ours("uml"),
        "uml, watched": lambda: starts.ours("uml", watched=True),
    }
    if shutil.which(libguestfs.GUESTFISH):
        contenders["guestfish run"] = starts.guestfish
    else:
        print("guestfish is not installed: its row is missing (package guestfish)")
    for start in (contenders["tcg"], contenders["uml"]):
        start()  # builds our initramfs
    with _virtme_kernel() as image:
        if arguments.virtme_run:
            contenders["virtme-ng"] = lambda: starts.virtme(arguments.virtme_run, image)
        else:
            print(
                "virtme-ng is not installed: its row is missing (pip install virtme-ng, then --virtme-run PATH)"
            )
        starts.ends.clear()
        values = measure_contenders(contenders, arguments.rounds, arguments.seed)
    peers = [name for name in ("guestfish run", "virtme-ng") if name in values]
    contenders_table(f"start to ready, {find_kernel().release}, {arguments.rounds} rounds", values, peers)
    contenders_table("start to the end of the process", starts.ends, [])
    if "guestfish run" in values:
        print(
            f"tcg / guestfish run   {median_ratio(values['tcg'], values['guestfish run']):.3f}   (aim ≤ 0.30)"
        )
    if "virtme-ng" in values:
        print(f"tcg / virtme-ng       {median_ratio(values['tcg'], values['virtme-ng']):.3f}")
    for name in ("tcg", "uml"):
        print(f"{name}, watched / {name}    {median_ratio(values[f'{name}, watched'], values[name]):.3f}")
    if arguments.nested:
        _time_nested_start(Starts(), ["tcg/kvm", "tcg/uml"], arguments.nested, arguments.seed)


if __name__ == "__main__":
    main()
