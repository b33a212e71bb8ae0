"""Sandboxes on this host: containers, and gVisor, whose own kernel answers their system calls."""

from typing import Any

from guestmark.core.platform_kind import PlatformKind, Program
from guestmark.platforms.descriptions import PlatformClass, describe_host_like
from guestmark.platforms.sandbox.programs import BWRAP, CRUN, PODMAN, RUNC, RUNSC
from guestmark.setting.machine import MEMORY
from guestmark.setting.network import HOST_NETWORK_FACTORS


def load_platform_class() -> PlatformClass:
    """Imports the class that starts sandboxes of every kind."""
    from guestmark.platforms.sandbox.platform import SandboxPlatform

    return SandboxPlatform


def _describe_sandbox(name: str, text: str, *programs: Program, **more: Any) -> PlatformKind:
    return describe_host_like(
        name, text, load_platform_class, MEMORY, *HOST_NETWORK_FACTORS, programs=programs, **more
    )


PLATFORMS = (
    _describe_sandbox("bwrap", "namespaces of this host (bubblewrap)", BWRAP),
    _describe_sandbox("crun", "a container of this host (crun)", CRUN),
    _describe_sandbox("runc", "a container of this host (runc)", RUNC),
    _describe_sandbox("podman", "a container started by podman", PODMAN, CRUN),
    _describe_sandbox(
        "gvisor", "a container whose system calls are handled by gVisor (runsc)", RUNSC, own_kernel=True
    ),
)
