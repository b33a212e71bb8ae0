"""A program that is measured: the same file on every platform, and a word about how it ended."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guestmark.errors import AttestationError, WorkloadError
from guestmark.plan.platform_spec import parse_platform
from guestmark.plan.units import format_duration, format_size
from guestmark.workloads.clocks import disagreement

if TYPE_CHECKING:
    from guestmark.agent.client import Agent, ExecResult

OUTPUT_LIMIT = 8 * 1024 * 1024  # bytes kept of each of stdout and stderr; more is counted and marked
_TAIL = 400  # characters of output that a reason may quote


@dataclass(frozen=True, slots=True)
class Found:
    """A program on a machine. `facts` go into the attestation; `warning` is empty when it is the host's own file."""

    path: str
    facts: dict[str, Any]
    warning: str = ""


def shares_root(platform: str) -> bool:
    """Whether the machines of a platform have the host's own files."""
    layers = parse_platform(platform).layers
    return all(layer.kind != "ssh" and layer.arch is None for layer in layers)


def find_same(agent: Agent, name: str, *, path: str | None, cwd: str, same_root: bool) -> Found:
    """Finds a command on the machine and compares its SHA-256 with the host's.

    Raises `CommandError` when it is not there, `AttestationError` when it is another file than on the host although the
    machine has the host's files.
    """
    found = agent.which(name, path=path, cwd=cwd)
    digest = agent.sha256(found).sha256
    host_path, host_digest = on_host(name, os.defpath if path is None else path, cwd)
    facts = {
        "binary": found,
        "binary_sha256": digest,
        "host_binary": host_path,
        "host_binary_sha256": host_digest,
    }
    if host_digest == digest:
        return Found(found, facts)
    if same_root:
        raise AttestationError(
            f"the workload is not the same program: {host_path} has SHA-256 {host_digest} on the host, "
            f"{found} has {digest} on the machine"
        )
    return Found(found, facts, f"{found} is another file than on this host (SHA-256 {digest[:12]}… there)")


def on_host(name: str, path: str, cwd: str) -> tuple[str, str]:
    """Path and digest of a command on this host; the digest is empty when it is not there or not readable."""
    if "/" in name:
        found: str | None = os.path.join(cwd, name)  # noqa: PTH118
    else:
        # Entries that are relative or empty mean the working directory, which here is the caller's.
        folders = [os.path.join(cwd, part) for part in path.split(os.pathsep)]  # noqa: PTH118
        found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        return "", ""
    try:
        status = os.stat(found)  # noqa: PTH116
        return found, _digest(found, status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError:
        return found, ""


def judge(result: ExecResult, warnings: list[str], limit_s: float, *, ignore_failure: bool = False) -> None:
    """How a program ended: adds to the warnings, raises `WorkloadError` with a one-line reason for a failure."""
    for name, discarded in (("stdout", result.stdout_discarded), ("stderr", result.stderr_discarded)):
        if discarded:
            warnings.append(f"{name} was longer than {format_size(OUTPUT_LIMIT)}; the rest was dropped")
    clocks = disagreement(result.wall_s, result.guest_wall_s, result.wall_error_s)
    warnings += [warning for warning in (result.clock_warning, clocks) if warning]
    if result.leftovers:
        warnings.append("the command left processes behind, which were killed")
    if result.timed_out:
        raise WorkloadError(f"the command ran past its limit of {format_duration(limit_s)}{tail(result)}")
    if result.signal is not None:
        raise WorkloadError(f"{_killed_by(result)}{tail(result)}")
    if result.oom_killed:
        raise WorkloadError(f"the machine ran out of memory and a process was killed{tail(result)}")
    if result.status != 0:
        text = f"the command failed with exit status {result.status}"
        if not ignore_failure:
            raise WorkloadError(text + tail(result))
        warnings.append(text)


def tail(result: ExecResult) -> str:
    """The end of what the program said, as part of a one-line reason."""
    return quote((result.stderr or result.stdout).decode(errors="replace"))


def quote(output: str) -> str:
    """The end of an output as part of a one-line reason."""
    printable = "".join(character if character.isprintable() else " " for character in output[-4 * _TAIL :])
    line = " ".join(printable.split())
    if not line:
        return ""
    return f": {line}" if len(line) <= _TAIL else f": …{line[-_TAIL:]}"


@functools.cache
def _digest(path: str, _mtime_ns: int, _size: int, _inode: int) -> str:
    with open(path, "rb") as stream:  # noqa: PTH123
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _killed_by(result: ExecResult) -> str:
    number = result.signal or 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if result.oom_killed:
        return f"the machine ran out of memory and the command was killed ({name})"
    return f"the command was killed by {name}"
