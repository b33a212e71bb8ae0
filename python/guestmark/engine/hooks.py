"""Hooks: the user's commands before and after a run or each trial, on this host; no figure includes their time."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.core.errors import GuestmarkError, WorkloadError
from guestmark.core.findings import Around, Findings
from guestmark.core.keeper import keeper
from guestmark.core.model import Plan
from guestmark.engine.interrupt import Interruption
from guestmark.workloads.common.program import OUTPUT_LIMIT, judge_exit

RUN, TRIAL = "run", "trial"
_END_S = 10.0


class HookRunner:
    """Runs the hooks of one plan, each under an agent of its own, so that none outlives this process."""

    def __init__(self, plan: Plan) -> None:
        commands = plan.context.around
        self._commands: Mapping[str, Mapping[str, str]] = {RUN: commands.run, TRIAL: commands.trial}
        self._caller = plan.context.caller
        self._limit_s = plan.policy.trial_limit_s

    def has_hooks(self, around: str) -> bool:
        """Return whether the plan has a hook around the run (`RUN`) or around its trials (`TRIAL`)."""
        return bool(self._commands.get(around))

    def run_hook(self, around: str, name: str) -> float:
        """Run a hook and return the seconds it took, 0 if there is none. Raises `WorkloadError` if it fails."""
        text = self._commands.get(around, {}).get(name)
        if not text:
            return 0.0
        process, transport = start_host_agent(hold=keeper().handles)
        try:
            with contextlib.closing(Agent(transport)) as agent:
                result = agent.exec(
                    ["/bin/sh", "-c", text],
                    env=self._caller.env,
                    cwd=self._caller.cwd,
                    timeout_s=self._limit_s,
                    output_limit=OUTPUT_LIMIT,
                )
        finally:
            _end_process(process)
        try:
            judge_exit(result, [], self._limit_s)
        except WorkloadError as error:
            raise WorkloadError(
                f"around.{around}.{name}: {error.message}", hint=error.hint, cause=error.cause
            ) from error
        return result.wall_s

    @contextlib.contextmanager
    def run_trial_hooks(self, interruption: Interruption, findings: Findings) -> Iterator[None]:
        """Run the hooks around a trial, before its machine is started and after it is gone; record their times.

        `conclude` runs whenever `prepare` has succeeded.
        """
        if not self.has_hooks(TRIAL):
            yield
            return
        times: dict[str, list[float]] = {}
        findings.add(Around(each=times), "host")
        with interruption.interruptible():
            times["prepare"] = [self.run_hook(TRIAL, "prepare")]
        try:
            yield
        except BaseException:
            # The reason why the trial failed matters more than a failing hook.
            with contextlib.suppress(GuestmarkError):
                self.run_hook(TRIAL, "conclude")
            raise
        with interruption.interruptible():
            times["conclude"] = [self.run_hook(TRIAL, "conclude")]


def _end_process(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
