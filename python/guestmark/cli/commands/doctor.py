"""Declares `guestmark doctor`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.core.option import Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Find out which platforms can be used here, by booting them.

    This takes at most 15 s, or 90 s if other programs keep all processors busy, so that a platform that is merely slow
    is not reported unusable. tcg/kvm, a guest inside a guest, gets the time that the others leave; on a slow host,
    --nested gives it enough. Results are kept until the host restarts or the hypervisor changes.
    """

    json: Annotated[bool, Option("--json", "Print JSON instead of text.")] = False
    again: Annotated[
        bool, Option("--again", "Boot every platform again, even those already tried since the host started.")
    ] = False
    nested: Annotated[
        bool,
        Option("--nested", "Wait as long as a guest inside a guest needs to start (up to three minutes)."),
    ] = False
    arch: Annotated[
        bool, Option("--arch", "List the architectures of guests and what is missing for each; boot nothing.")
    ] = False
    details: Annotated[
        bool,
        Option(
            "--details",
            "Show complete reasons, what to do about them, how guests are confined, and versions.",
        ),
    ] = False
