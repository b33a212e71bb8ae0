"""Finds the files that a guest boots: agent, kernel and shared root, for this host's or another architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from guestmark.appliance.kernel import Kernel, Notify, find_kernel
from guestmark.appliance.modules import ModuleTree
from guestmark.core.architectures import Architecture
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.levels import Levels
from guestmark.core.model import Cell
from guestmark.core.own_program import find_agent_binary
from guestmark.core.workload_kind import find_packages
from guestmark.foreign import kernels, parts
from guestmark.foreign.roots import Root
from guestmark.platforms.qemu import virtiofs
from guestmark.setting.machine import KERNEL, MODULES, ROOTFS

NINE_P, VIRTIOFS = "9p", "virtiofs"
_HOST_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Boot:
    """The files that a guest boots. `share` is how its root is shared; empty if it stays in the initramfs."""

    agent: Path
    kernel: Kernel
    share: str
    root: Path = _HOST_ROOT
    # The root that was built from packages; None if it is the host's.
    packages: Root | None = None

    @property
    def root_type(self) -> str:
        """The type of the root filesystem in the guest."""
        return "overlay" if self.share else "rootfs"


def find_boot(architecture: Architecture, cell: Cell, levels: Levels, notify: Notify) -> Boot:
    """Returns what the cell's guest boots; downloads or builds missing parts. Raises `GuestmarkError`."""
    wanted = levels.get(KERNEL) or ""
    if architecture.is_host:
        if wanted and not architecture.kernel_unpacked:
            kernel = kernels.describe_user_kernel(architecture, wanted)
        else:
            kernel = find_kernel(wanted, notify, rank_kernel)
        kernel = use_given_modules(kernel, levels)
        share = _choose_share(kernel)
        if levels.get(ROOTFS) and share != NINE_P:
            raise PlatformUnusableError(
                f"the kernel {kernel.release} has no 9p, so it can use only the host's root",
                hint="use another kernel: --set kernel=FILE",
            )
        return Boot(find_agent_binary(), kernel, share, Path(levels.get(ROOTFS) or _HOST_ROOT))
    made = parts.get_parts(architecture, find_packages(cell))
    kernel = made.kernel
    if wanted:
        kernel = kernels.describe_user_kernel(architecture, wanted)
    kernel = use_given_modules(kernel, levels)
    if made.root is None:
        return Boot(made.agent, kernel, "")
    share = _choose_share(kernel)
    if share != NINE_P:
        raise PlatformUnusableError(
            f"the kernel {kernel.release} has no 9p, so a root for {architecture.name} cannot be shared with it",
            hint="use another kernel: --set kernel=FILE",
        )
    return Boot(made.agent, kernel, share, Path(levels.get(ROOTFS) or made.root.path), made.root)


def use_given_modules(kernel: Kernel, levels: Levels) -> Kernel:
    """Returns the kernel with the modules of the level `modules`, if there is one."""
    given = levels.get(MODULES)
    return kernel if given is None else replace(kernel, modules=Path(given))


def rank_kernel(kernel: Kernel) -> int | None:
    """Ranks kernels if none is requested: those with 9p first, then those with virtiofs if the daemon is installed."""
    try:
        share = _choose_share(kernel)
        if share == VIRTIOFS:
            virtiofs.find_daemon()
    except PlatformUnusableError:
        return None
    return (NINE_P, VIRTIOFS).index(share)


def _choose_share(kernel: Kernel) -> str:
    """Returns 9p if the kernel supports it, else virtiofs. A kernel without modules is assumed to have 9p built in."""
    if kernel.modules is None:
        return NINE_P
    tree = ModuleTree.read(kernel.modules)
    if tree.has_module("9pnet_virtio"):
        return NINE_P
    if not tree.has_module("virtiofs"):
        raise PlatformUnusableError(
            f"the kernel {kernel.release} has neither 9p nor virtiofs, so the host's root cannot be shared with it",
            hint="use another kernel: --set kernel=FILE",
        )
    return VIRTIOFS
