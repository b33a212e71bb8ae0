"""The start and the end of a guest, phase by phase, and its slowest initcalls.

`docs/guide/boot.md` says how each end is known.
"""

import re

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Metric
from guestmark.core.workload_kind import Topic, WorkloadKind

READY = Metric("ready_s", "s")  # process started → agent ready
VMM = Metric("vmm_s", "s")  # process started → firmware's first sign of life (UML: → the kernel starts)
FIRMWARE = Metric("firmware_s", "s")  # → it hands over to the kernel
ENTRY = Metric("entry_s", "s")  # → the kernel's first line (unpacking, where the kernel does that)
KERNEL = Metric("kernel_s", "s")  # → PID 1 runs
MODULES = Metric("modules_s", "s")  # → modules loaded
ROOT = Metric("root_s", "s")  # → root filesystem mounted
AGENT = Metric("agent_s", "s")  # → the agent (of libguestfs: its daemon) answers
WORK = Metric("work_s", "s")  # → the order to switch off: attestation, and the command if there is one
POWEROFF = Metric("poweroff_s", "s")  # → the kernel's last line
EXIT = Metric("exit_s", "s")  # → the process is gone
TOTAL = Metric("total_s", "s")  # process started → gone
PHASES = (
    VMM,
    FIRMWARE,
    ENTRY,
    KERNEL,
    MODULES,
    ROOT,
    AGENT,
    WORK,
    POWEROFF,
    EXIT,
)  # in order; they add up to TOTAL
ALL = (READY, TOTAL, *PHASES)


class Watched(msgspec.Struct, frozen=True):
    """What is watched of a start."""

    initcalls: bool = False


class Booted(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as a stored plan has them; `command` runs between ready and power-off."""

    watch: Watched
    command: list[str] = []


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


def _label(params: Booted) -> str:
    import shlex

    work = f" with {shlex.join(params.command)}" if params.command else ""
    return f"boot{work}{', initcalls traced' if params.watch.initcalls else ''}"


WORKLOADS = (
    WorkloadKind(
        "boot",
        "how a guest starts and shuts down, phase by phase",
        params="guestmark.workloads.boot.workload:BootParams",
        run="guestmark.workloads.boot.workload:BootWorkload",
        metrics=lambda _params: ALL,
        label=_label,
        reads=Booted,
        watches=lambda params: params.watch.initcalls,
        topic=Topic.START,
        packages="guestmark.workloads.boot.workload:of_command",
        needs_root=lambda params: bool(params.command) or params.watch.initcalls,
        sections=("guestmark.workloads.boot.sections:sections",),
    ),
)
