"""Declares `guestmark campaign`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Compare a host before and after a restart, for instance with another kernel: A B B A, boot by boot.

    Every boot is one run of the command and one observation, so intervals show how far boots differ. After a restart,
    `guestmark campaign NAME` continues: type it, or let a systemd unit run it (--unit). At the end, and with --status,
    the sides are compared.

    Exit status: 0 done, or restart the host now; 2 the command line is wrong, 3 nothing could be measured, 130
    interrupted.
    """

    campaign: Annotated[str, Argument("NAME", "The campaign's name.", Candidates.CAMPAIGNS)]
    argv: Annotated[
        list[str] | None,
        Argument(
            "[-- COMMAND...]", "Begin a campaign that measures this command. Without a command: continue."
        ),
    ] = None
    sides: Annotated[
        str,
        Option("--sides", "Names of the two states of the host to compare, e.g. two kernels.", metavar="A,B"),
    ] = "A,B"
    rounds: Annotated[
        int, Option("--rounds", "Number of rounds, each of four boots: A B B A.", metavar="N", minimum=1)
    ] = 2
    switch: Annotated[
        str,
        Option(
            "--switch",
            "Command that selects {side} for the host's next start, e.g. grub-reboot {side}.",
            metavar="COMMAND",
        ),
    ] = ""
    verify: Annotated[
        str,
        Option(
            "--verify",
            "Command that must succeed if the host runs as {side}, and fail otherwise.",
            metavar="COMMAND",
        ),
    ] = ""
    reboot_command: Annotated[
        str,
        Option(
            "--reboot-command",
            "Command that restarts the host, e.g. systemctl reboot. Default: you restart it yourself.",
            metavar="COMMAND",
        ),
    ] = ""
    in_place: Annotated[
        bool,
        Option(
            "--in-place",
            "The reboot command restarts something other than the host and returns when that is "
            "done, so continue at once.",
        ),
    ] = False
    unit: Annotated[
        bool,
        Option(
            "--unit",
            "Print a systemd unit that continues the campaign whenever the host starts. With a "
            "command: begin the campaign, but measure nothing yet.",
        ),
    ] = False
    status: Annotated[bool, Option("--status", "Show progress and results; measure nothing.")] = False
    forget: Annotated[bool, Option("--forget", "End the campaign; its runs stay in the ledger.")] = False
    on: Annotated[list[str] | None, options.make_platforms_option("Where to run it. Default: host.")] = None
    machine: options.Machine = None
    metrics: options.Metrics = None
    stdin: options.Input = None
