"""libvirt's `virsh`: which one, what it says, and its errors in one line."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

from guestmark.core.cause import Cause, Speaker, heard
from guestmark.core.errors import GuestmarkError, MachineError, PlatformUnusableError
from guestmark.page.text import inert
from guestmark.platforms.ssh.session import chosen
from guestmark.platforms.ssh.session import program as ssh

VARIABLE = "GUESTMARK_VIRSH"
_S = 60.0
_LIMIT = 300


def program() -> list[str]:
    """The virsh to use, with options of the user's own: `GUESTMARK_VIRSH`, words as for a shell; else `virsh`."""
    return chosen(VARIABLE, "virsh")


def environment() -> dict[str, str]:
    """In which virsh says what this module understands."""
    return {**os.environ, "LC_ALL": "C"}


def call(domain: str, *arguments: str, timeout_s: float = _S) -> str:
    """What virsh prints. Raises `PlatformUnusableError` for what cannot help itself, `MachineError` for the rest."""
    command = [*program(), "-q", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            timeout=timeout_s,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise PlatformUnusableError(
            f"{command[0]} cannot be started: {error.strerror}", hint="install the package libvirt-clients"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"libvirt took more than {timeout_s:.0f} s for {arguments[0]} of {domain}"
        ) from error
    if done.returncode != 0:
        raise refusal(domain, done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors="replace")


def refusal(domain: str, said: str) -> MachineError | PlatformUnusableError:
    """The error for what virsh refused."""
    lines = [line.removeprefix("error:").strip() for line in said.splitlines() if line.strip()]
    cause = heard(Speaker.VIRSH, said).cause
    if cause is not Cause.OTHER:
        return PlatformUnusableError(
            f"{domain} {cause.words}", hint=cause.hint.format(name=domain), cause=cause
        )
    last = inert(lines[-1])[:_LIMIT] if lines else "virsh failed without a word"
    return MachineError(
        f"libvirt refuses {domain}: {last}", hint="try it by hand with virsh", console=inert(said, lines=True)
    )


_SOURCES = ("lease", "agent", "arp")  # of virsh domifaddr
_ADDRESS = re.compile(r"\sipv[46]\s+([0-9a-fA-F.:]+)")
_QUERY_S = 10.0


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
            [*ssh(), "-G", "--", dest], capture_output=True, text=True, timeout=_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return next((value.lower() for key, _, value in lines if key == "hostname"), "")


def _is_address(name: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]?", name))
