"""The user's own machines, created by commands in a TOML file: with any runtime, hypervisor or cloud."""

from __future__ import annotations

import contextlib

from guestmark.core.errors import UsageError
from guestmark.core.levels import Levels
from guestmark.core.platform_kind import OWN_PARAMETER, PlatformKind
from guestmark.platforms.descriptions import PlatformClass
from guestmark.setting.machine import START, Start
from guestmark.setting.network import EXISTING_NETWORK_FACTORS, NETWORK, Network, explain_only_existing


def suggest_name(name: str) -> str:
    """Return a hint for a name without a definition; empty for one that is defined."""
    from guestmark.platforms.own.store import find_definition

    try:
        find_definition(name)
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    return ""


def explain_refused_levels(name: str, levels: Levels) -> str:
    """Return why machines of that definition cannot have these levels; empty if they can."""
    from guestmark.platforms.own.store import find_definition

    with contextlib.suppress(UsageError):
        definition = find_definition(name)
        if levels[START] is Start.RESTORED and not definition.can_restore:
            return "its definition has no commands for snapshots: snapshot, restore and discard"
        if levels[NETWORK] is Network.EXISTING and definition.plain:
            return "no agent runs in a plain machine, so its network cannot be measured"
    return explain_only_existing(levels[NETWORK])


def load_platform_class() -> PlatformClass:
    """Imports the class that creates the machines."""
    from guestmark.platforms.own.platform import OwnPlatform

    return OwnPlatform


PLATFORMS = (
    PlatformKind(
        "own",
        "a machine of your own, created by commands in a file",
        load_platform_class,
        guest=False,
        factors=(START, *EXISTING_NETWORK_FACTORS),
        remote=True,
        on_this_host=True,
        starts_timed=True,
        destination="NAME",
        example_destination="podman",
        advice=suggest_name,
        objection=explain_refused_levels,
        instead_of_nesting='its commands can run on another machine over ssh: host = "…" in its file',
        parameter_prefix=OWN_PARAMETER,
        # Pulling images and starting cloud machines takes long; the definition's timeouts usually end a start earlier.
        start_limit_s=900.0,
    ),
)
