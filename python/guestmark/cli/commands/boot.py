"""Declares `guestmark boot`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Option

OPTIONS_FIRST = True


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Measure how guests start and end, phase by phase.

    The phases lead from the hypervisor's start through firmware, kernel, modules, root filesystem and agent to an
    orderly shutdown; the host's clock times them. Every block boots each platform once, in random order.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """

    argv: Annotated[
        list[str] | None,
        Argument("[-- COMMAND...]", "Run this in the guest after it is ready and before it shuts down."),
    ] = None
    on: Annotated[
        list[str] | None,
        options.make_platforms_option(
            "What to boot: kvm, tcg, uml, or one inside another, such as tcg/kvm. Default: tcg,uml."
        ),
    ] = None
    initcalls: Annotated[
        bool,
        Option(
            "--initcalls", "List the kernel's slowest initcalls. Tracing them slows the start down a little."
        ),
    ] = False
    guestfish: Annotated[
        bool, Option("--guestfish", "Also measure how libguestfs launches its guest, on tcg and kvm.")
    ] = False
