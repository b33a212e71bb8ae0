"""Explains why a program may not use user namespaces on this host."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Switch:
    name: str
    forbids: str
    allows: str
    means: str
    for_root: bool = False


_SWITCHES = (
    _Switch("user.max_user_namespaces", "0", "15000", "this host allows no user namespaces", for_root=True),
    _Switch("kernel.unprivileged_userns_clone", "0", "1", "this host allows user namespaces only to root"),
    # Ubuntu's default since 24.04.
    _Switch(
        "kernel.apparmor_restrict_unprivileged_userns", "1", "0",
        "AppArmor allows user namespaces only to programs whose profile permits them",
    ),
)  # fmt: skip


def explain_how_to_allow(settings: Path = Path("/proc/sys"), *, root: bool | None = None) -> str:
    """Return in one line what forbids this user to use them and how to change it; empty if nothing known does.

    `root` tells whether the user is root; None stands for the user of this process.
    """
    is_root = os.geteuid() == 0 if root is None else root
    for switch in _SWITCHES:
        try:
            found = (settings / switch.name.replace(".", "/")).read_text().strip()
        except OSError:
            continue
        if found == switch.forbids and (switch.for_root or not is_root):
            return f"{switch.means}; as root: sysctl {switch.name}={switch.allows}"
    return ""
