"""Another machine, over the system's ssh."""

from __future__ import annotations

import re

from guestmark.core.factor import Factor
from guestmark.core.platform_kind import PlatformKind

_DEST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*", re.ASCII)
_PORT = re.compile(r"(?P<name>[^:]+|.*\]):(?P<port>\d+)", re.ASCII)
_BRACKETS = re.compile(r"(.*@)?\[(.+)\]")


def advice(dest: str) -> str:
    """What to do about a text that ssh would not take as a destination; empty for one that it takes.

    As for ssh itself, a port is no part of it, and an address of IPv6 has no brackets.
    """
    if found := _PORT.fullmatch(dest):
        port, name = found["port"], found["name"].rpartition("@")[2].strip("[]")
        return (
            f"a port belongs in ssh_config: Host lab1, HostName {name}, Port {port}; then ssh:lab1 "
            f"(or GUESTMARK_SSH='ssh -p {port}')"
        )
    if found := _BRACKETS.fullmatch(dest):
        return f"ssh wants an address of IPv6 without brackets: {found[1] or ''}{found[2]}"
    return "" if _DEST.fullmatch(dest) else "e.g. user@example.org, or a name that ssh_config has as Host"


def _command(text: str) -> str:
    if not text.strip():
        raise ValueError("the command is empty")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"{text!r} contains control characters")
    return text.strip()


RESTART = Factor(
    "restart",
    "a command of this host's shell that makes another machine fresh before each trial, e.g. virsh snapshot-revert "
    r"$GUESTMARK_DEST clean --running (write a comma inside as \,)",
    _command,
)
READY = Factor(
    "ready",
    "a command of this host's shell that succeeds when the restarted machine may be measured; tried once a second",
    _command,
)
FRESHNESS = (RESTART, READY)

PLATFORMS = (
    PlatformKind(
        "ssh",
        "another machine, whatever it runs on",
        "guestmark.platforms.ssh.platform:SshPlatform",
        holds_guests=True,
        inside="guestmark.platforms.ssh.guests:RemoteGuestPlatform",
        guest=False,
        remote=True,
        destination="DEST",
        example_destination="user@example.org",
        advice=advice,
        factors=FRESHNESS,
        outer_factors=FRESHNESS,
    ),
)
