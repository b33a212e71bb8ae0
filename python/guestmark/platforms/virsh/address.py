"""Where ssh finds a domain whose name it has no address for: asked of libvirt, as leases change."""

from __future__ import annotations

import contextlib
import re
import subprocess

from guestmark.core.errors import GuestmarkError
from guestmark.platforms.ssh.session import program
from guestmark.platforms.virsh.manager import call

_SOURCES = ("lease", "agent", "arp")  # of virsh domifaddr
_ADDRESS = re.compile(r"\sipv[46]\s+([0-9a-fA-F.:]+)")
_S = 10.0


def way_to(dest: str, domain: str) -> tuple[str, ...]:
    """Options for ssh: none where its configuration has an address for `dest`, else the one that libvirt knows.

    The host key is the one that is known for `dest`, whatever address the domain has today.
    """
    name = dest.rpartition("@")[2]
    if _host_name(dest) != name.lower() or _is_address(name):
        return ()
    for source in _SOURCES:
        with contextlib.suppress(GuestmarkError):
            if found := addresses(call(domain, "domifaddr", "--source", source, domain)):
                return ("-o", f"HostName={found[0]}", "-o", f"HostKeyAlias={name}")
    return ()


def addresses(table: str) -> list[str]:
    """Those that `virsh domifaddr` prints, but for loopback and links' own."""
    found = _ADDRESS.findall(table)
    return [
        address for address in found if not address.lower().startswith(("127.", "::1", "fe80:", "169.254."))
    ]


def _host_name(dest: str) -> str:
    """What ssh would connect to; the destination's own name where its configuration does not say."""
    try:
        done = subprocess.run(
            [*program(), "-G", "--", dest], capture_output=True, text=True, timeout=_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return next((value.lower() for key, _, value in lines if key == "hostname"), "")


def _is_address(name: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]?", name))
