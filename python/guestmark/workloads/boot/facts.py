"""What the workload `boot` finds out besides its metrics: the slowest initcalls, from the log with `initcall_debug`."""

import re

import msgspec

from guestmark.core.findings import Fact


class Initcall(msgspec.Struct):
    """One of the kernel's initcalls."""

    name: str
    seconds: float


class Initcalls(msgspec.Struct, kw_only=True):
    """The slowest ones, slowest first; how many there were of all, and their sum."""

    slowest: list[Initcall]
    count: int
    seconds: float


class Boot(Fact, kw_only=True):
    """The initcalls of a kernel that was made to say how long each took."""

    initcalls: Initcalls


_SHOWN = 20
# Linux, init/main.c: `initcall %pS returned %d after %lld usecs`; modules' names stand behind in brackets.
_RETURNED = re.compile(
    r"initcall (?P<name>[\w.]+)\+\S+(?: \[(?P<module>\w+)\])? returned (?P<code>-?\d+) after (?P<us>\d+) usecs"
)


def parse(log: str) -> list[tuple[str, float]]:
    """Every initcall in a kernel's log with its seconds, in order; those of modules as `name [module]`."""
    return [
        (f"{name} [{module}]" if module else name, int(us) / 1e6)
        for name, module, _, us in _RETURNED.findall(log)
    ]


def slowest(log: str) -> Initcalls:
    """What a trial keeps: the slowest calls, the number of all and their sum in seconds."""
    calls = parse(log)
    ordered = sorted(calls, key=lambda call: call[1], reverse=True)
    return Initcalls(
        slowest=[Initcall(name, seconds) for name, seconds in ordered[:_SHOWN]],
        count=len(calls),
        seconds=sum(seconds for _, seconds in calls),
    )
