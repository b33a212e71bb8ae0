"""The small hypervisors' programs. No distribution packages them: their projects publish static binaries."""

from guestmark.core.platform_kind import Program

FIRECRACKER = Program("firecracker", "")
CLOUD_HYPERVISOR = Program("cloud-hypervisor", "")
