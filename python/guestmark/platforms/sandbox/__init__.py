"""Sandboxes on this host: containers, and gVisor, whose own kernel answers their system calls."""

from guestmark.core.platform_kind import Program
from guestmark.platforms.host import host_like
from guestmark.setting.machine import MEMORY

_LOAD = "guestmark.platforms.sandbox.platform:SandboxPlatform"
BWRAP = Program("bwrap", "bubblewrap")
CRUN = Program("crun", "crun")
RUNC = Program("runc", "runc")
PODMAN = Program("podman", "podman")
RUNSC = Program("runsc", "runsc")

PLATFORMS = (
    host_like("bwrap", "namespaces of this host (bubblewrap)", _LOAD, MEMORY, programs=(BWRAP,)),
    host_like("crun", "a container of this host (crun)", _LOAD, MEMORY, programs=(CRUN,)),
    host_like("runc", "a container of this host (runc)", _LOAD, MEMORY, programs=(RUNC,)),
    host_like("podman", "a container that podman starts", _LOAD, MEMORY, programs=(PODMAN, CRUN)),
    host_like(
        "gvisor",
        "a container whose system calls gVisor's kernel answers (runsc)",
        _LOAD,
        MEMORY,
        programs=(RUNSC,),
        own_kernel=True,
    ),
)
