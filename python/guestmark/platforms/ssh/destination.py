"""Checks whether ssh accepts a text as a destination."""

import re

_DEST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*", re.ASCII)
_PORT = re.compile(r"(?P<name>[^:]+|.*\]):(?P<port>\d+)", re.ASCII)
_BRACKETS = re.compile(r"(.*@)?\[(.+)\]")


def explain_bad_destination(dest: str) -> str:
    """Returns a hint about a text that ssh does not accept as a destination; empty for one that it accepts.

    As for ssh itself, a destination contains no port, and an IPv6 address has no brackets.
    """
    if found := _PORT.fullmatch(dest):
        port, name = found["port"], found["name"].rpartition("@")[2].strip("[]")
        return (
            f"set the port in ssh_config: Host lab1, HostName {name}, Port {port}; then ssh:lab1 "
            f"(or GUESTMARK_SSH='ssh -p {port}')"
        )
    if found := _BRACKETS.fullmatch(dest):
        return f"ssh expects IPv6 addresses without brackets: {found[1] or ''}{found[2]}"
    return "" if _DEST.fullmatch(dest) else "use e.g. user@example.org, or a Host from ssh_config"
