"""What ssh says when there is no session, in one line with something to do about it."""

from __future__ import annotations

from guestmark.core.errors import MachineError
from guestmark.page.text import last_line


class UnreachableError(MachineError):
    """The machine does not answer, which it may do later: it is starting, perhaps."""


_CUT = ("Connection reset by", "Connection closed by", "kex_exchange_identification", "Broken pipe")
_ON_THE_WAY = "UNKNOWN port 65535"  # what ssh calls the other end of a ProxyJump's or ProxyCommand's pipe
_AFTER = (_ON_THE_WAY, "kex_exchange_identification")  # follow what the proxy itself has said
_LATER = frozenset({"refuses connections", "does not answer", "cannot be reached: no route to host"})
# Part of what ssh says; what it means, as the rest of a sentence about the machine; what to do. The first that fits.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "has another host key than the one that is known",
        "if you know why, remove the old one: ssh-keygen -R {dest}; then log in once by hand",
    ),
    (
        "Host key verification failed",
        "has a host key that is not known here",
        "log in once by hand and compare it: ssh {dest}",
    ),
    (
        "Permission denied",
        "does not let us in without a password",
        "give it your key: ssh-copy-id {dest}; or share a connection: ControlMaster in ssh_config",
    ),
    (
        "Too many authentication failures",
        "does not let us in",
        "say in ssh_config which key it wants: IdentityFile and IdentitiesOnly",
    ),
    (
        "Could not resolve hostname",
        "is not known by that name",
        "check the name, or give it a HostName in ssh_config",
    ),
    ("Connection refused", "refuses connections", "check that sshd runs there, and the port"),
    ("No route to host", "cannot be reached: no route to host", "check that it is switched on: ping it"),
    ("Network is unreachable", "cannot be reached: no network leads there", "check this machine's network"),
    ("timed out", "does not answer", "check that it is switched on, and firewalls between here and there"),
    ("Bad configuration option", "cannot be reached: ssh's configuration is wrong", "try it: ssh {dest}"),
    ("bad permissions", "cannot be reached: ssh refuses a key file that others can read", "chmod 600 it"),
    ("not found", "has no POSIX shell at /bin/sh", "only Linux machines can be measured"),
    ("This account is currently not available", "does not let this user run anything", "choose another user"),
)


def refusal(dest: str, said: str, status: int | None, printed: str = "") -> MachineError:
    """The error for a session that did not come about: `said` by ssh itself, `printed` by the other side."""
    if _ON_THE_WAY in said:
        return _stopped_on_the_way(dest, said)
    text = f"{said}\n{printed}"
    last = last_line(said) or last_line(printed)
    if any(part in text for part in _CUT):
        return UnreachableError(
            f"{dest} ended the connection: {last}", hint=f"try it by hand: ssh {dest}", console=said
        )
    for part, meaning, hint in _KNOWN:
        if part in text:
            why = f": {last}" if meaning == "is not known by that name" else ""
            kind = UnreachableError if meaning in _LATER else MachineError
            return kind(f"{dest} {meaning}{why}", hint=hint.format(dest=dest), console=said)
    if last:
        return MachineError(f"no session on {dest}: {last}", hint=f"try it by hand: ssh {dest}", console=said)
    how = "nothing was said" if status is None else f"ssh ended with status {status}"
    return MachineError(f"no session on {dest}: {how}", hint=f"try it by hand: ssh {dest}", console=said)


def _stopped_on_the_way(dest: str, said: str) -> MachineError:
    """The error for a jump host or a proxy that did not get there, which has said why before ssh did."""
    before = "\n".join(line for line in said.splitlines() if not any(part in line for part in _AFTER))
    why = last_line(before) or "it ended the connection without a word"
    kind = MachineError if is_final(before) else UnreachableError
    return kind(
        f"the way to {dest} is closed, its ProxyJump or ProxyCommand failed: {why}",
        hint=f"try it by hand: ssh {dest}",
        console=said,
    )


def is_final(said: str) -> bool:
    """Whether what ssh said will be the same at the next attempt: a key, a name or a configuration is wrong."""
    said = "\n".join(line for line in said.splitlines() if _ON_THE_WAY not in line)
    if any(part in said for part in _CUT):
        return False
    return next((meaning not in _LATER for part, meaning, _ in _KNOWN if part in said), False)


def failure(dest: str, said: str, why: str, *, gone: bool) -> MachineError:
    """The error for a session that had begun: `why` its agent failed, and whether the other side had `gone`."""
    last = last_line(said)
    told = (
        f"the connection to {dest} was lost{f': {last}' if last else ''}"
        if gone
        else f"the agent on {dest} failed"
    )
    return MachineError(f"{told} ({why})", hint=f"see whether it still answers: ssh {dest}", console=said)
