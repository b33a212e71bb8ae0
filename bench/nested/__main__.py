"""Measure what a block of nested trials costs beyond the outer guest's boot and the inner trials.

Run from the checkout: `.venv/bin/python -m bench.nested [--on tcg/kvm,tcg/uml] [--trials 3] [--memory 512M]`. In one
block, an outer guest is started, and in it the requested number of inner guests, one after the other. Aims: an inner
KVM guest ready within 8 s of its hypervisor's start, at most 2 s of overhead.

* outer ready: the outer hypervisor started → its agent's hello.
* inner ready: the inner hypervisor started → its agent's hello, each trial.
* overhead: the whole block, less the outer boot and the inner trials, from each inner hypervisor's start to its end.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.qemu.nested.outer import OUTERS

AIM_READY_S, AIM_OVERHEAD_S = 8.0, 2.0


@dataclass
class Block:
    """Seconds of one block."""

    outer_s: float = 0.0
    inner_s: list[float] = field(default_factory=list)
    trials_s: float = 0.0
    whole_s: float = 0.0

    @property
    def overhead_s(self) -> float:
        """The time of the block besides the outer boot and the inner trials."""
        return self.whole_s - self.outer_s - self.trials_s


def time_block(platform: str, trials: int, memory: str) -> Block:
    """Run one block, and return its times."""
    cell = Cell("bench", WorkloadSpec("bench"), PlatformSpec.read(platform), {"memory": memory})
    found = Block()
    begin = time.monotonic()
    with OUTERS.share_in_block([cell]):
        for _ in range(trials):
            with registry.get_platform(platform).start(cell) as guest:
                guest.attest()
                found.inner_s.append(guest.phases["ready"])
                found.outer_s += guest.phases.get("outer_ready", 0.0)
                started_at = guest.process.started_at  # type: ignore[attr-defined]
            found.trials_s += time.monotonic() - started_at
    found.whole_s = time.monotonic() - begin
    return found


def main() -> None:
    """Print a line for each platform."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="tcg/kvm,tcg/uml")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--memory", default="512M")
    given = parser.parse_args()
    for platform in given.on.split(","):
        found = time_block(platform, given.trials, given.memory)
        inner = " ".join(f"{seconds:.2f}" for seconds in found.inner_s)
        sys.stdout.write(
            f"{platform}: outer ready {found.outer_s:.2f} s, inner ready {inner} s"
            f"{f' (aim {AIM_READY_S:g})' if platform.endswith('kvm') else ''}, "
            f"overhead {found.overhead_s:.2f} s (aim {AIM_OVERHEAD_S:g}) of {found.whole_s:.2f} s\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
