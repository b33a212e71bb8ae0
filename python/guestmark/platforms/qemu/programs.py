"""The programs that QEMU's platforms run on the host."""

from guestmark.core.architectures import find_host_architecture
from guestmark.core.platform_kind import Program

# Distributions install virtiofsd outside PATH, in different directories, because users do not start it.
VIRTIOFSD_PATHS = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd")
PROGRAMS = (
    find_host_architecture().emulator,
    Program("qemu-img", "qemu-utils"),
    Program("virtiofsd", "virtiofsd", VIRTIOFSD_PATHS),
)
