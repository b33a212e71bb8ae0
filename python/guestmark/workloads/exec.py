"""Any command of the user's, the very same binary on every platform."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guestmark.agent.client import CommandError
from guestmark.errors import AttestationError, WorkloadError
from guestmark.plan import metric_spec
from guestmark.plan.exec_plan import read_stdin
from guestmark.plan.model import Cell, Measurement, Metric, Plan
from guestmark.plan.platform_spec import parse_platform
from guestmark.plan.units import format_duration, format_size
from guestmark.workloads.clocks import disagreement

if TYPE_CHECKING:
    from guestmark.agent.client import ExecResult
    from guestmark.platforms.base import Machine

OUTPUT_LIMIT = 8 * 1024 * 1024  # bytes kept of each of stdout and stderr; more is counted and marked
_TAIL = 400  # characters of output that a reason may quote


class ExecWorkload:
    """Runs one command; measures its time on both clocks, its processor time, its memory, and what it prints."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        params, context = cell.workload.params, plan.context
        self.facts: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._argv: list[str] = list(params["argv"])
        self._metrics = [metric_spec.MetricSpec.from_params(one) for one in params.get("metrics", ())]
        self._ignore_failure = bool(params.get("ignore_failure"))
        self._stdin = _load_stdin(params["stdin"]) if "stdin" in params else b""
        self._limit_s = plan.policy.trial_limit_s
        self._caller: dict[str, Any] = {
            "env": dict(context["env"]),
            "cwd": context["cwd"],
        }
        if (
            cell.platform != "host"
        ):  # where the agent has the caller's identity already, and may not change it
            self._caller |= {name: context.get(name) for name in ("uid", "gid", "groups")}
        self._same_root = _shares_root(cell.platform)

    def prepare(self, machine: Machine) -> None:
        """Finds the command on both sides and compares its digest.

        Raises `WorkloadError` when it is not there, `AttestationError` when it is another file than on the host.
        """
        agent, env, cwd = machine.agent, self._caller["env"], self._caller["cwd"]
        try:
            path = agent.which(self._argv[0], path=env.get("PATH"), cwd=cwd)
        except CommandError as error:
            raise _cannot_run(self._argv, error) from error
        digest = agent.sha256(path).sha256
        self.facts["binary"] = path
        self.facts["binary_sha256"] = digest
        on_host = _on_host(self._argv[0], env.get("PATH", os.defpath), cwd)
        self.facts["host_binary"], self.facts["host_binary_sha256"] = on_host
        if on_host[1] == digest:
            return
        if self._same_root:
            raise AttestationError(
                f"the workload is not the same program: {on_host[0]} has SHA-256 {on_host[1]} on the host, "
                f"{path} has {digest} on the machine"
            )
        self.warnings.append(f"{path} is another file than on this host (SHA-256 {digest[:12]}… there)")

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the command once. Raises `WorkloadError` with a one-line reason when it fails."""
        result = machine.agent.exec(
            self._argv,
            env=self._caller["env"],
            cwd=self._caller["cwd"],
            uid=self._caller.get("uid"),
            gid=self._caller.get("gid"),
            groups=self._caller.get("groups"),
            stdin=self._stdin,
            timeout_s=self._limit_s,
            output_limit=OUTPUT_LIMIT,
        )
        self._judge(result)
        values: list[tuple[Metric, float]] = []
        if self._metrics:
            stdout, stderr = (text.decode(errors="replace") for text in (result.stdout, result.stderr))
            values += [(spec.metric, self._extract(spec, stdout, stderr)) for spec in self._metrics]
        values += [
            (metric_spec.WALL, result.wall_s),
            (metric_spec.GUEST_WALL, result.guest_wall_s),
            (metric_spec.USER, result.user_s),
            (metric_spec.SYSTEM, result.system_s),
            (metric_spec.MAX_RSS, float(result.max_rss_bytes)),
        ]
        return [Measurement(metric, value, (value,)) for metric, value in values]

    def cleanup(self, machine: Machine) -> None:
        """Nothing: what the command wrote belongs to the user on the host, and is thrown away with a guest."""

    def _judge(self, result: ExecResult) -> None:
        for name, discarded in (("stdout", result.stdout_discarded), ("stderr", result.stderr_discarded)):
            if discarded:
                self.warnings.append(
                    f"{name} was longer than {format_size(OUTPUT_LIMIT)}; the rest was dropped"
                )
        clocks = disagreement(result.wall_s, result.guest_wall_s, result.wall_error_s)
        self.warnings += [warning for warning in (result.clock_warning, clocks) if warning]
        if result.leftovers:
            self.warnings.append("the command left processes behind, which were killed")
        if result.timed_out:
            raise WorkloadError(
                f"the command ran past its limit of {format_duration(self._limit_s)}{_tail(result)}"
            )
        if result.signal is not None:
            raise WorkloadError(f"{_killed_by(result)}{_tail(result)}")
        if result.oom_killed:
            raise WorkloadError(f"the machine ran out of memory and a process was killed{_tail(result)}")
        if result.status != 0:
            text = f"the command failed with exit status {result.status}"
            if not self._ignore_failure:
                raise WorkloadError(text + _tail(result))
            self.warnings.append(text)

    def _extract(self, spec: metric_spec.MetricSpec, stdout: str, stderr: str) -> float:
        try:
            return spec.extract(stdout, stderr)
        except WorkloadError as error:
            raise WorkloadError(error.message + _quote(stdout or stderr), hint=error.hint) from error


def _shares_root(platform: str) -> bool:
    layers = parse_platform(platform).layers
    return all(layer.kind != "ssh" and layer.arch is None for layer in layers)


def _load_stdin(described: Mapping[str, Any]) -> bytes:
    data = read_stdin(described["path"])
    if hashlib.sha256(data).hexdigest() != described["sha256"]:
        raise WorkloadError(f"the input {described['path']} has changed since the run began")
    return data


def _on_host(name: str, path: str, cwd: str) -> tuple[str, str]:
    """Path and digest of the command on this host; the digest is empty when it is not there or not readable."""
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


@functools.cache
def _digest(path: str, _mtime_ns: int, _size: int, _inode: int) -> str:
    with open(path, "rb") as stream:  # noqa: PTH123
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _cannot_run(argv: list[str], error: CommandError) -> WorkloadError:
    name = argv[0]
    if error.kind == "not_found" and len(argv) == 1 and any(character.isspace() for character in name):
        return WorkloadError(
            f"command not found: {name!r}", hint=f"write the words apart, or sh -c {name!r} for a shell"
        )
    return error


def _killed_by(result: ExecResult) -> str:
    number = result.signal or 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if result.oom_killed:
        return f"the machine ran out of memory and the command was killed ({name})"
    return f"the command was killed by {name}"


def _tail(result: ExecResult) -> str:
    return _quote((result.stderr or result.stdout).decode(errors="replace"))


def _quote(output: str) -> str:
    """The end of the output as part of a one-line reason."""
    printable = "".join(character if character.isprintable() else " " for character in output[-4 * _TAIL :])
    line = " ".join(printable.split())
    if not line:
        return ""
    return f": {line}" if len(line) <= _TAIL else f": …{line[-_TAIL:]}"
