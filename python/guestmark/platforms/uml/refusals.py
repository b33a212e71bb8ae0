"""Why a host may refuse to run User-Mode Linux, read from its last output."""

import re

from guestmark.core.errors import MachineError

# Linux, arch/um/os-Linux/start_up.c: the checks that its kernel makes of the host before anything else.
_PTRACE = re.compile(
    r"^.*(?:check_ptrace|check_sysemu|start_ptraced_child|PTRACE_\w+|ptrace: ).*$", re.MULTILINE
)
_EXEC = re.compile(r"^.*(?:/dev/shm must be not mounted noexec|must not be mounted noexec).*$", re.MULTILINE)


def explained(error: MachineError) -> MachineError:
    """The error for a guest that did not start; names what the host refuses if that is the reason."""
    if found := _PTRACE.search(error.console):
        what = "this host does not let User-Mode Linux trace its guest's processes"
        hint = (
            "in a container: --cap-add=SYS_PTRACE, or --security-opt seccomp=unconfined; "
            "else see kernel.yama.ptrace_scope; not under a debugger; or use tcg"
        )
    elif found := _EXEC.search(error.console):
        what = "User-Mode Linux cannot execute code in its memory file"
        hint = "point TMPDIR at a directory that is not mounted noexec"
    else:
        return error
    said = found.group().strip()[:200]
    return MachineError(f"{what} ({said})", hint=hint, console=error.console, phases=error.phases)
