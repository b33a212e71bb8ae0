"""The measured program: finds it on every platform, compares it with this host's, and judges how it ended."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import shutil
import signal
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from guestmark.agent.client import Agent, ExecResult
from guestmark.agent.clocks import Ping
from guestmark.core.architectures import Architecture
from guestmark.core.cause import Cause
from guestmark.core.errors import AttestationError, UsageError, WorkloadError
from guestmark.core.findings import Build, Findings, Program
from guestmark.core.model import Cell
from guestmark.core.shell_syntax import is_shell_word, join_for_shell, needs_shell
from guestmark.core.units import format_duration, format_share, format_size
from guestmark.core.workload_kind import find_packages
from guestmark.foreign import roots
from guestmark.foreign.packages import find_owner, find_package

# Bytes kept of stdout and of stderr; what exceeds this is discarded, with a warning.
OUTPUT_LIMIT = 8 * 1024 * 1024
# Characters of output that a reason may quote.
_TAIL = 400
# Bytes. The SHA-256 of a program at least this large is not computed in every trial: see `compare_program`.
_LARGE = 1 << 20
_DIGEST_S = 120.0
# Tolerated difference between durations on the host's and the guest's clock.
RELATIVE_TOLERANCE = 0.01
ABSOLUTE_TOLERANCE_S = 0.005
# SHA-256 by XXH3 of files for which a machine has reported both.
_known: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program on a machine; `warning` is empty if it is the host's own file."""

    program: Program
    warning: str = ""
    build: Build | None = None

    def add_facts(self, findings: Findings, name: str = "") -> None:
        """Adds the program's path and digests; `name` distinguishes several programs of one trial."""
        findings.add(self.program, name)
        if self.build is not None:
            findings.add(self.build, name)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The name of a command, and the directories in which it is searched for."""

    name: str
    path: str | None
    cwd: str


def compare_program(
    agent: Agent, name: str, *, path: str | None, cwd: str, cell: Cell, here: Lookup | None = None
) -> FoundProgram:
    """Finds a command on the machine and compares its SHA-256 with the host's.

    SHA-256 of a large program takes an emulated machine seconds. There the first machine reports both SHA-256 and XXH3
    (128 bits), and later ones are compared by XXH3, which the result's `xxh3` shows. `here` is the command's name on
    this host, if that differs.

    Raises `CommandError` if there is no such command, `AttestationError` if a machine with the host's files has another
    file than the host.
    """
    found = agent.which(name, path=path, cwd=cwd)
    here = here or Lookup(name, path, cwd)
    host = _find_on_host(here.name, os.defpath if here.path is None else here.path, here.cwd)
    digest, xxh3 = _compute_remote_digests(agent, found, host)
    program = Program(
        path=found, sha256=digest, host_path=host.path, host_sha256=host.sha256, xxh3=xxh3 or None
    )
    if host.sha256 == digest:
        return FoundProgram(program)
    if cell.shares_root:
        raise AttestationError(
            f"the workload is not the same program: {host.path} has SHA-256 {host.sha256} on the host, "
            f"{found} has {digest} on the machine"
        )
    if build := describe_builds(cell, os.path.basename(name), host.path):
        return FoundProgram(program, build.said, build)
    return FoundProgram(program, f"{found} differs from this host's file (its SHA-256 is {digest[:12]}…)")


@dataclass(frozen=True, slots=True)
class _ProgramOnHost:
    """A command on this host; the digest is empty if the file is missing or not readable."""

    path: str = ""
    sha256: str = ""
    size: int = 0


def _find_on_host(name: str, path: str, cwd: str) -> _ProgramOnHost:
    if "/" in name:
        found: str | None = os.path.join(cwd, name)
    else:
        # Relative or empty entries refer to the working directory, which here is the caller's.
        folders = [os.path.join(cwd, part) for part in path.split(os.pathsep)]
        found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        return _ProgramOnHost()
    try:
        return _ProgramOnHost(found, compute_sha256(found), os.stat(found).st_size)
    except OSError:
        return _ProgramOnHost(found)


def _compute_remote_digests(agent: Agent, found: str, host: _ProgramOnHost) -> tuple[str, str]:
    """Returns the SHA-256 of a file on the machine, and its XXH3 if the host's file is large."""
    if host.size < _LARGE or not agent.in_machine:
        return agent.sha256(found).sha256, ""
    xxh3 = agent.checksum(found, timeout_s=_DIGEST_S).xxh3
    if _known.get(xxh3) != host.sha256:
        _known[xxh3] = agent.sha256(found, timeout_s=_DIGEST_S).sha256
    return _known[xxh3], xxh3


def judge_exit(
    result: ExecResult,
    warnings: list[str],
    limit_s: float,
    *,
    ignore_failure: bool = False,
    statuses: Collection[int] = (0,),
) -> None:
    """Judges how a program ended.

    Appends to `warnings`. Raises `WorkloadError` with a one-line reason for a failure. `statuses` are the exit statuses
    that mean success.
    """
    for name, discarded in (("stdout", result.stdout_discarded), ("stderr", result.stderr_discarded)):
        if discarded:
            warnings.append(f"{name} was longer than {format_size(OUTPUT_LIMIT)}; the rest was dropped")
    clocks = warn_of_clocks(result.wall_s, result.guest_wall_s, result.wall_error_s)
    warnings += [warning for warning in (result.clock_warning, clocks) if warning]
    if result.leftovers:
        warnings.append("the command left processes behind, which were killed")

    def make_exit_error(cause: Cause, text: str) -> WorkloadError:
        return WorkloadError(text + quote_end(result), cause=cause)

    if result.timed_out:
        raise make_exit_error(
            Cause.TIME_LIMIT, f"the command {Cause.TIME_LIMIT.words} {format_duration(limit_s)}"
        )
    if result.signal is not None:
        cause = Cause.OUT_OF_MEMORY if result.oom_killed else Cause.SIGNAL
        raise make_exit_error(cause, _describe_killing(result))
    if result.oom_killed:
        raise make_exit_error(Cause.OUT_OF_MEMORY, f"{Cause.OUT_OF_MEMORY.words} and a process was killed")
    if result.status not in statuses:
        text = f"the command {Cause.STATUS.words} {result.status}"
        if not ignore_failure:
            raise make_exit_error(Cause.STATUS, text)
        warnings.append(text)


def quote_end(result: ExecResult) -> str:
    """Quotes the end of a program's output as part of a one-line reason."""
    return quote_output((result.stderr or result.stdout).decode(errors="replace"))


def quote_output(output: str) -> str:
    """Quotes the end of an output as part of a one-line reason."""
    line = " ".join(blank_unprintable(output[-4 * _TAIL :]).split())
    if not line:
        return ""
    if len(line) > _TAIL:
        return f": …{line[-_TAIL:]}"
    return f": {line}"


def blank_unprintable(text: str) -> str:
    """Returns the text with a blank in place of each character that cannot be printed."""
    return "".join(character if character.isprintable() else " " for character in text)


def compute_sha256(path: str) -> str:
    """Returns the SHA-256 of a file on this host, recomputed only if it has changed. Raises `OSError`."""
    status = os.stat(path)
    return _compute_digest(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.cache
def _compute_digest(path: str, _mtime_ns: int, _size: int, _inode: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _describe_killing(result: ExecResult) -> str:
    number = result.signal or 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if result.oom_killed:
        return f"{Cause.OUT_OF_MEMORY.words} and the command was killed ({name})"
    return f"the command {Cause.SIGNAL.words} {name}"


def describe_builds(cell: Cell, name: str, host_path: str) -> Build | None:
    """Compares a program on the cell's machine with this host's; returns None if the architecture is the same."""
    architecture = cell.platform.foreign_architecture
    if architecture is None:
        return None
    here = find_package(host_path) if host_path else None
    if here is None:
        return Build(architecture=architecture.name, said=_describe_build(architecture, name, "", ""))
    root = roots.find_root(architecture, find_packages(cell)) if architecture.root else None
    # The package has the same name there, as all architectures share one release of the distribution.
    there = root.packages.get(here.name) if root else None
    if there is None:
        said = _describe_build(architecture, name, "", here.version)
        return Build(architecture=architecture.name, host_version=here.version, said=said)
    return Build(
        architecture=architecture.name,
        package=there.name,
        version=there.version,
        host_version=here.version,
        same_source=(there.source, there.source_version) == (here.source, here.source_version),
        said=_describe_build(architecture, name, there.version, here.version),
    )


def _describe_build(architecture: Architecture, name: str, version: str, host_version: str) -> str:
    if not version:
        return f"another build: {name}, {architecture.name}"
    # Debian numbers rebuilds of one source `+b1`, `+b2`, separately for each architecture.
    if version.partition("+b")[0] == host_version.partition("+b")[0]:
        return f"another build: {name} {version}, {architecture.name}"
    return f"another version: {name} {version}, {architecture.name} (this host: {host_version or 'not a package'})"


def warn_of_clocks_between(before: Ping, after: Ping) -> str:
    """Returns a warning unless the machine's clock ran as fast as the host's between two pings; else empty."""
    uncertain_s = (before.round_trip_ns + after.round_trip_ns) / 1e9
    ours_s, theirs_s = (after.host_ns - before.host_ns) / 1e9, (after.guest_ns - before.guest_ns) / 1e9
    return warn_of_clocks(ours_s, theirs_s, uncertain_s)


def warn_of_clocks(wall_s: float, guest_wall_s: float, error_s: float = 0.0) -> str:
    """Returns a warning if the clocks differ by more than the sum of 1 %, 5 ms and `error_s`; else empty.

    `error_s` is the known uncertainty of the host's figure. The host's clock is the authority.
    """
    difference = guest_wall_s - wall_s
    if abs(difference) <= RELATIVE_TOLERANCE * wall_s + ABSOLUTE_TOLERANCE_S + error_s:
        return ""
    share = f" ({format_share(difference / wall_s, 1, signed=True)})" if wall_s > 0 else ""
    return f"the clocks disagree: {wall_s:.4g} s on the host's, {guest_wall_s:.4g} s on the guest's{share}"


# The agent's default if PATH is not set.
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_command(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, typed: bool) -> None:
    """Raises `UsageError` if `execvp`, called in `cwd`, would find no such program on the host.

    `typed` tells that the command was given on the command line and not in a plan; the hint depends on that.
    """
    name = argv[0]
    path = env.get("PATH", _DEFAULT_PATH)
    files = [os.path.join(cwd, file) for file in _list_candidates(name, path)]
    reasons = {file: _explain_unrunnable(file) for file in files}
    if None in reasons.values():
        return
    # Like execvp: if a file exists but is not executable, that is a better reason than that others do not exist.
    for file, told in reasons.items():
        if told and told[0]:
            shown = name if "/" in name else os.path.normpath(file)
            raise UsageError(f"{shown!r} {told[0]}", hint=told[1])
    words = _split_name(name)
    if is_shell_word(name) and (len(argv) > 1 or len(words) == 1):
        raise UsageError(
            f"{name!r} is part of the shell, not a program",
            hint=_suggest_quoting(["sh", "-c", join_for_shell(argv)], typed),
        )
    if len(words) > 1:
        words = ["sh", "-c", *argv] if needs_shell(name) else [*words, *argv[1:]]
        raise UsageError(f"command not found: {name!r} as one word", hint=_suggest_quoting(words, typed))
    raise UsageError(f"command not found: {name!r}", hint=_suggest_program(name, path, cwd))


def _list_candidates(name: str, path: str) -> list[str]:
    if "/" in name:
        return [name]
    return [f"{directory or '.'}/{name}" for directory in path.split(os.pathsep)]


def _explain_unrunnable(file: str) -> tuple[str, str] | None:
    """Returns why a file cannot be run, and a remedy; None if it can.

    The reason is empty if there is no such file.
    """
    try:
        mode = os.stat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except (OSError, ValueError) as error:
        return (
            f"cannot be accessed: {getattr(error, 'strerror', None) or error}",
            "give the path of a program",
        )
    if stat.S_ISDIR(mode):
        return "is a directory, not a program", "name a program in it"
    if not stat.S_ISREG(mode):
        return "is not a regular file, so it is not a program", "give the path of a program"
    if not os.access(file, os.X_OK):
        return (
            "is not executable",
            f"run chmod +x {shlex.quote(os.path.normpath(file))}, or put its interpreter before it",
        )
    return None


def _split_name(name: str) -> list[str]:
    """Splits a name into the words that a shell would see."""
    try:
        return shlex.split(name)
    except ValueError:  # an open quotation
        return [name]


def _suggest_quoting(words: Sequence[str], typed: bool) -> str:
    if typed:
        return f"did you mean: -- {shlex.join(words)}"
    return f"did you mean: command = {json.dumps(words, ensure_ascii=False)}"


def _suggest_program(name: str, path: str, cwd: str) -> str:
    """Returns a hint for the user about a program that was not found."""
    if "/" in name:
        return f"there is no such file (current directory: {cwd})"
    if _explain_unrunnable(os.path.join(cwd, name)) is None:
        return f"to run the program in the current directory, write ./{name}"
    from difflib import get_close_matches

    close = get_close_matches(name, set(_list_programs(path, cwd)), n=1, cutoff=0.8)
    return f"did you mean {close[0]!r}?" if close else "check that it is installed, in a directory of PATH"


def _list_programs(path: str, cwd: str) -> Iterable[str]:
    for directory in dict.fromkeys(path.split(os.pathsep)):
        try:
            yield from os.listdir(os.path.join(cwd, directory or "."))
        except OSError:
            continue


def find_program_packages(name: str) -> tuple[str, ...]:
    """Returns the packages that installed this host's program of that name, and the target if it is a link."""
    found = shutil.which(os.path.expanduser(name))
    if found is None:
        return ()
    owners = {find_owner(path) for path in (found, os.path.realpath(found))}
    return tuple(sorted(owner for owner in owners if owner is not None))
