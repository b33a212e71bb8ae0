"""Why KVM cannot be used although it is there."""

import os
from pathlib import Path

_KVM_HINT = (
    "the host's KVM cannot run a Linux guest (common in virtual machines without real nested virtualization); "
    "use tcg or uml here, or tcg/kvm to exercise KVM"
)


def kvm_hint(message: str) -> str:
    """What to do about a KVM guest that failed with this message; empty when nothing is known."""
    device = Path("/dev/kvm")
    if not device.exists():
        return "there is no /dev/kvm: load kvm_amd or kvm_intel, or enable virtualization in the firmware"
    if not os.access(device, os.R_OK | os.W_OK):
        return "you may not open /dev/kvm: add yourself to its group (usually kvm)"
    return _KVM_HINT if "guest" in message else ""
