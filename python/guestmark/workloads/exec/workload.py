"""Any command: the very same binary on every platform."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guestmark.agent.client import CommandError
from guestmark.core import metric_spec
from guestmark.core.errors import WorkloadError
from guestmark.core.factors import VARIABLE, is_variable
from guestmark.core.findings import Findings
from guestmark.core.model import Cell, Measurement, Metric, Plan
from guestmark.workloads.common.lookup import check_command
from guestmark.workloads.common.program import OUTPUT_LIMIT, find_same, judge, quote
from guestmark.workloads.exec.plan import read_stdin

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine


class ExecWorkload:
    """Runs one command; measures its time on both clocks, its processor time, its memory, and what it prints."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        params, context = cell.workload.params, plan.context
        self.facts = Findings()
        self.warnings: list[str] = []
        self._argv: list[str] = filled(cell)
        self._metrics = [metric_spec.MetricSpec.from_params(spec) for spec in params.get("metrics", ())]
        self._ignore_failure = bool(params.get("ignore_failure"))
        self._stdin = _load_stdin(params["stdin"]) if "stdin" in params else b""
        self._limit_s = plan.policy.trial_limit_s
        self._caller: dict[str, Any] = {
            "env": {**context["env"], **_variables(cell)},
            "cwd": context["cwd"],
        }
        if cell.platform.is_guest:  # where the agent has the caller's identity already, and may not change it
            self._caller |= {name: context.get(name) for name in ("uid", "gid", "groups")}
        if cell.platform.foreign:  # the caller's directories are not there
            self._caller["cwd"] = "/"
        self._cell = cell

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` when a command is not there. A machine with other files than the host's finds its own."""
        typed = plan.name == "exec"
        commands = {tuple(filled(cell)) for cell in cells if cell.shares_root}
        for argv in sorted(commands):
            check_command(argv, env=plan.context["env"], cwd=plan.context["cwd"], typed=typed)

    def prepare(self, machine: Machine) -> None:
        """Finds the command on both sides and compares its digest.

        Raises `WorkloadError` when it is not there, `AttestationError` when it is another file than on the host.
        """
        agent, env, cwd = machine.agent, self._caller["env"], self._caller["cwd"]
        try:
            found = find_same(agent, self._argv[0], path=env.get("PATH"), cwd=cwd, cell=self._cell)
        except CommandError as error:
            raise _cannot_run(self._argv, error) from error
        found.keep(self.facts)
        self.warnings += [found.warning] if found.warning else []

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
        judge(result, self.warnings, self._limit_s, ignore_failure=self._ignore_failure)
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

    def _extract(self, spec: metric_spec.MetricSpec, stdout: str, stderr: str) -> float:
        try:
            return spec.extract(stdout, stderr)
        except WorkloadError as error:
            raise WorkloadError(error.message + quote(stdout or stderr), hint=error.hint) from error


def filled(cell: Cell) -> list[str]:
    """The cell's command: its levels in place of `{name}` for the parameters that the command has."""
    names = cell.workload.params.get("parameters", ())
    argv = list(cell.workload.params["argv"])
    for name in names:
        argv = [word.replace("{" + name + "}", cell.factors.get(name, "")) for word in argv]
    return argv


def _variables(cell: Cell) -> dict[str, str]:
    """The environment variables that are factors."""
    return {name.removeprefix(VARIABLE): level for name, level in cell.factors.items() if is_variable(name)}


def _load_stdin(described: Mapping[str, Any]) -> bytes:
    data = read_stdin(described["path"])
    if hashlib.sha256(data).hexdigest() != described["sha256"]:
        raise WorkloadError(f"the input {described['path']} has changed since the run began")
    return data


def _cannot_run(argv: list[str], error: CommandError) -> WorkloadError:
    name = argv[0]
    if error.kind == "not_found" and len(argv) == 1 and any(character.isspace() for character in name):
        return WorkloadError(
            f"command not found: {name!r}", hint=f"write the words apart, or sh -c {name!r} for a shell"
        )
    return error
