"""The parameters of the workload `exec` as a plan holds them: a command, and all that belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from guestmark.agent.wire import StandardOutput
from guestmark.core.factor import ARGUMENT
from guestmark.core.metric_spec import MetricSpec
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.workload_kind import workload_kinds

if TYPE_CHECKING:
    from guestmark.core.model import Cell


class Input(msgspec.Struct, frozen=True):
    """The file of `--input`, by which it is recognised."""

    path: str
    size: int
    sha256: str


class File(msgspec.Struct, frozen=True):
    """A file that other machines are brought."""

    path: str
    sha256: str
    size: int
    mode: int


def factor_of(parameter: str) -> str:
    """The factor that holds a parameter's levels: of its own name, unless machines have that one."""
    taken = is_machine_factor(parameter) or parameter in {"platform", "workload"}
    return f"{ARGUMENT}{parameter}" if taken else parameter


def parameter_of(factor: str) -> str:
    """The parameter whose levels the factor holds."""
    return factor.removeprefix(ARGUMENT)


class Command(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The parameters of a cell: what is run, what around it, and what becomes of its output."""

    argv: list[str] = []
    metrics: list[dict[str, Any]] = []  # as `MetricSpec.to_params` has them
    stdin: Input | None = None
    hooks: dict[str, str] = {}  # setup, prepare, check, conclude, cleanup
    parameters: list[str] = []  # factors whose levels stand in the command, as `{name}`: see `factor_of`
    ignore_failure: bool = False
    push: list[File] = []
    cwd: str | None = None  # instead of the caller's
    statuses: tuple[int, ...] = (0,)  # with which it may end
    expect: str | None = None  # has to match what it prints
    output: StandardOutput = StandardOutput.PIPE  # which runs had before there was a choice
    shell: list[str] = []  # the words of `argv` before `-c`: hyperfine's shell, whose start is subtracted
    disks: list[dict[str, Any]] = []  # as `setting.disk` has them

    @classmethod
    def of(cls, cell: Cell) -> Command:
        """The cell's."""
        return cell.workload.read_params(cls)

    @property
    def specs(self) -> list[MetricSpec]:
        """The metrics that the user defined."""
        return [MetricSpec.from_params(spec) for spec in self.metrics]

    @property
    def texts(self) -> list[str]:
        """Everything that may hold a `{name}`."""
        return [*self.argv, *self.hooks.values(), *(spec.file for spec in self.specs)]

    def stored(self) -> dict[str, Any]:
        """As a plan holds it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def command_of(cell: Cell) -> Command | None:
    """The command that the workload of a stored cell runs; None for a workload that runs what is its own."""
    kind = workload_kinds().get(cell.workload.name)
    found = None if kind is None or kind.command is None else kind.stored_params_of(cell.workload)
    return found if isinstance(found, Command) else None
