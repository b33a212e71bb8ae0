"""The workload `exec`: any command, the same binary on every platform."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from guestmark.core.metric import Metric
from guestmark.core.metric_spec import DEFAULT_METRICS
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.workloads.base import Workload
from guestmark.workloads.common.factors import decides_disk_factor_on_host
from guestmark.workloads.common.program import find_program_packages
from guestmark.workloads.exec.command import ExecParams


class ExecWorkload(Workload[ExecParams]):
    """Runs the user's command, with the hooks around it."""

    name = "exec"
    help = "runs any command: the host's own binary on every platform"
    runs_command = True
    runs_on_disk = True

    @classmethod
    def list_metrics(cls, params: ExecParams) -> tuple[Metric, ...]:
        """Returns the user's metrics, then those that every command has."""
        return (*(spec.metric for spec in params.metric_specs), *DEFAULT_METRICS)

    @classmethod
    def describe_params(cls, params: ExecParams) -> str:
        """Returns the command as it would be typed."""
        return shlex.join(params.argv)

    @classmethod
    def decides_factor(cls, params: ExecParams, factor: str, platform: PlatformSpec) -> bool | None:
        """Accepts factors of disks on the host if the command's disk there is an image instead of a directory."""
        return decides_disk_factor_on_host(params, factor, platform)

    @classmethod
    def user_command(cls, params: ExecParams) -> Sequence[str]:
        """Returns the command as a list of arguments."""
        return params.argv

    @classmethod
    def find_packages(cls, params: ExecParams) -> tuple[str, ...]:
        """Returns the packages that contain the command's program."""
        return find_program_packages(params.argv[0])

    @classmethod
    def acknowledging_params(cls, cell: Cell) -> Mapping[str, Any]:
        """Returns parameters with which the command's own syncs count as acknowledgements."""
        from guestmark.workloads.exec.trial import build_proof_params

        return build_proof_params(cell)

    @classmethod
    def trial_class(cls) -> type[Workload[ExecParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.exec.trial import ExecTrial

        return ExecTrial
