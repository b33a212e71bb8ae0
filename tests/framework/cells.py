"""Creates cells and plans in one line."""

from collections.abc import Mapping
from typing import Any

from guestmark.core import registry
from guestmark.core.context import Context
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec


def spec(kind: str, **params: Any) -> WorkloadSpec:
    """Return a workload with parameters in a plan's form; they are checked, and defaults are filled in."""
    return WorkloadSpec(kind, registry.workload_kind(kind).check_params(params))


def cell(platform: str, workload: WorkloadSpec | str = "test", **factors: str) -> Cell:
    """Return one cell named `test`.

    A workload given by name has no parameters. The default is a workload that does not exist, for tests that only
    start a machine.
    """
    made = WorkloadSpec(workload) if isinstance(workload, str) else workload
    return Cell("test", made, PlatformSpec.read(platform), factors)


def cell_of(platform: str, kind: str, factors: Mapping[str, str] | None = None, **params: Any) -> Cell:
    """Return one cell of an existing workload, with checked parameters and these factors."""
    return cell(platform, spec(kind, **params), **(factors or {}))


def plan_of(*cells: Cell, limit_s: float = 120.0, context: Context | None = None) -> Plan:
    """Return a plan of these cells in which a trial may take `limit_s`."""
    return Plan("test", cells, Policy(trial_limit_s=limit_s), (), context or Context())
