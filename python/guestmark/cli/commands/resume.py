"""Declares `guestmark resume`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.home import LATEST
from guestmark.plan.policy_options import find_policy_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Continue a run exactly where it stopped, or extend a complete one.

    An imported run, or one in another user's ledger, needs --trust.
    """

    run: options.Run = LATEST
    blocks: Annotated[
        int | None, find_policy_option("blocks", "Continue until there are this many blocks.")
    ] = None
    precision: Annotated[
        float | None,
        find_policy_option("precision", "Continue until every ratio is known to this precision."),
    ] = None
    time_limit_s: Annotated[
        float | None,
        find_policy_option("time_limit_s", "Continue for at most this long (default: as long as before)."),
    ] = None
    trust: options.Trust = False
    published: options.Published = False
    details: options.Details = False
    keep: options.Keep = False
    wait: options.Wait = True
    quiet_host: options.QuietHost = False
    junit: options.Junit = None
    json: options.Json = None
    csv: options.Csv = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
    quiet: options.Quiet = False
