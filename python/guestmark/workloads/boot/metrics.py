"""What is measured of a guest's start and end; `docs/guide/boot.md` says how each end is known."""

import msgspec

from guestmark.core.metric import Metric

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
