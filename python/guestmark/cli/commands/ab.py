"""Declares `guestmark ab`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Option

OPTIONS_FIRST = True
Pair = tuple[str, str] | None


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Compare two programs, kernels, QEMUs, firmwares, root filesystems or settings: A is the baseline.

    Put --- between two programs: ab -- ./old --- ./new.

    One run measures both sides, in random order in every block, so the host's state favours neither. A path may carry
    a label: old:/boot/vmlinuz-6.1. Several pairs span all their combinations.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """

    argv: Annotated[
        list[str],
        Argument(
            "-- COMMAND...", "The command and its arguments; put --- between two commands to compare them."
        ),
    ]
    kernels: Annotated[Pair, Option("--kernel", "Two kernels for guests.", "A B")] = None
    qemu: Annotated[Pair, Option("--qemu", "Two QEMUs: programs, builds, or unpacked packages.", "A B")] = (
        None
    )
    bios: Annotated[Pair, Option("--bios --firmware", "Two firmwares for QEMU.", "A B")] = None
    modules: Annotated[Pair, Option("--modules", "Two directories of kernel modules.", "A B")] = None
    rootfs: Annotated[Pair, Option("--rootfs", "Two root filesystems for guests.", "A B")] = None
    image: Annotated[Pair, Option("--image", "Two disk images that guests boot.", "A B")] = None
    env: Annotated[
        tuple[str, str, str] | None,
        Option("--env", "Two values of an environment variable.", metavar="NAME A B"),
    ] = None
    factor: Annotated[
        tuple[str, str, str] | None, Option("--factor", "Two levels of any factor.", metavar="NAME A B")
    ] = None
    on: Annotated[
        list[str] | None,
        options.make_platforms_option(
            "Where to run it. Default: kvm where it works, else tcg; host for --env."
        ),
    ] = None
    machine: options.Machine = None
    metrics: options.Metrics = None
    stdin: options.Input = None
    ignore_failure: options.IgnoreFailure = False
