"""The programs that create sandboxes."""

from guestmark.core.platform_kind import Program

BWRAP = Program("bwrap", "bubblewrap")
CRUN = Program("crun", "crun")
RUNC = Program("runc", "runc")
PODMAN = Program("podman", "podman")
RUNSC = Program("runsc", "runsc")
