"""The parameters of the workload `exec`: a command, and everything that belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from guestmark.agent.wire import StandardOutput
from guestmark.core import regex
from guestmark.core.errors import UsageError
from guestmark.core.factor import ARGUMENT
from guestmark.core.metric_spec import MetricSpec, parse_metrics, split_metrics
from guestmark.core.model import Cell
from guestmark.core.params import Param, Params, param
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.workload_kind import index_workload_kinds
from guestmark.workloads.exec.files import File, Input, describe_files, describe_input

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}", re.ASCII)


def check_runnable(words: list[str]) -> list[str]:
    """Returns a command's arguments unchanged. Raises `ValueError` if no kernel could execute them."""
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError("its name is empty, or it contains a NUL character")
    return words


def _check_expression(text: str | None) -> str | None:
    try:
        regex.read_groups(text or "")
    except regex.PatternError as error:
        raise ValueError(f"not a valid regular expression: {error}") from error
    return text


def choose_output(
    asked: StandardOutput | None, specs: Iterable[MetricSpec], *, expected: bool = False
) -> StandardOutput:
    """Returns where a command's standard output goes: as `asked`, or by default to `/dev/null` unless it is read.

    `expected` is True if the output is searched for a text. Raises `UsageError` if the output is needed but discarded.
    """
    by_metric = any(spec.event is None and not spec.file for spec in specs)
    read = expected or by_metric
    if read and asked is StandardOutput.NULL:
        reader = "--metric reads" if by_metric else "is searched for the expected text"
        raise UsageError(
            f"--output null discards what {reader}",
            hint="omit --output: guestmark uses a pipe where one is needed",
        )
    return asked or (StandardOutput.PIPE if read else StandardOutput.NULL)


def mentions_parameter(name: str, texts: Iterable[str]) -> bool:
    """Returns whether one of the texts contains `{name}`."""
    placeholder = "{" + name + "}"
    return any(placeholder in text for text in texts)


def _declare_shell_command(description: str) -> Param:
    return param(description, "shell command", accepts=str | None, default=None)


def name_factor(parameter: str) -> str:
    """Returns the name of a parameter's factor: its own name, unless machines have a factor of that name."""
    taken = is_machine_factor(parameter) or parameter in {"platform", "workload"}
    return f"{ARGUMENT}{parameter}" if taken else parameter


def name_parameter(factor: str) -> str:
    """Returns the name of the parameter whose levels the factor holds."""
    return factor.removeprefix(ARGUMENT)


class ExecParams(Params, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of a cell: the command, the hooks around it, and where its output goes.

    `command` is the argument list; `{name}` in it stands for an entry of `values`, to which `scale` can refer. With
    factors of disks it runs in a new directory on that disk, or gets the disk's path in place of `{disk}`. `host_disk`
    is its disk on the host, as for `sysbench`; the default is a directory, if the cells it is compared with have disks.
    Its standard output goes to `/dev/null`, or through a pipe if `metrics` or `expect` read it, unless `output` is
    given.
    """

    argv: Annotated[
        list[str],
        param(
            "program and arguments",
            "list of arguments",
            key="command",
            parse=check_runnable,
            default=...,
            min_length=1,
        ),
    ] = []
    # In the form of `MetricSpec.to_params`.
    metrics: Annotated[
        list[dict[str, Any]], param("further metrics, written as for `--metric`", accepts=list[str])
    ] = []
    stdin: Annotated[Input | None, param("standard input", "path", key="input", accepts=str | None)] = None
    # Shell commands by name: setup, prepare, check, conclude, cleanup.
    hooks: dict[str, str] = {}
    # Factors whose levels replace `{name}` in the command: see `name_factor`.
    parameters: list[str] = []
    ignore_failure: Annotated[bool, param("measure runs that fail, too")] = False
    push: Annotated[list[File], param("files to copy to another machine", "paths", accepts=list[str])] = []
    cwd: str | None = None  # in place of the caller's
    statuses: Annotated[
        tuple[int, ...],
        param("exit statuses that mean success", accepts=list[int] | None, default=None, min_length=1),
    ] = (0,)
    expect: Annotated[
        str | None,
        param("expression that must match the output", "regular expression", parse=_check_expression),
    ] = None
    # Runs from before this parameter existed used a pipe.
    output: Annotated[
        StandardOutput,
        param("where standard output goes", accepts=StandardOutput | None, default=None, strict=False),
    ] = StandardOutput.PIPE
    # The arguments of `argv` before `-c`: a shell as in hyperfine, whose start time is subtracted.
    shell: list[str] = []
    disks: Annotated[
        list[dict[str, Any]],  # in the form of `setting.disk`
        param(
            "disk under test on the host: a directory or a loop device",
            key="host_disk",
            accepts=Literal["directory", "loop"] | None,
            default=None,
        ),
    ] = []

    INPUTS: ClassVar = {
        "values": param(
            "values for `{NAME}` in the command; `scale` can refer to them",
            accepts=dict[str, str | int | float],
            default={},
        ),
        "setup": _declare_shell_command("command that runs once on each fresh machine"),
        "prepare": _declare_shell_command("command that runs before each run"),
        "conclude": _declare_shell_command("command that runs after each run and its check"),
        "cleanup": _declare_shell_command("command that runs once, at the end"),
        "check": _declare_shell_command("command that runs after each run; if it fails, so does the trial"),
    }

    @classmethod
    def make(
        cls,
        *,
        argv: list[str],
        values: dict[str, str | int | float],
        metrics: list[str],
        stdin: str | None,
        push: list[str],
        statuses: list[int] | None,
        output: StandardOutput | None,
        disks: str | None,
        ignore_failure: bool,
        expect: str | None,
        **hooks: str | None,
    ) -> ExecParams:
        """Creates the parameters from a plan's values. Raises `UsageError`, `ValueError` for an unused value."""
        given = {name: text for name, text in hooks.items() if text}
        for name in values:
            if not mentions_parameter(name, (*argv, *given.values())):
                raise ValueError(f"values.{name} is not used: the command does not contain {{{name}}}")
        specs, derived = split_metrics(parse_metrics(metrics))
        if derived:
            raise ValueError(f"metrics.{derived[0].metric.name}: in a plan, arithmetic belongs in [derived]")
        words = [_substitute_values(word, values) for word in argv]
        texts = {name: _substitute_values(text, values) for name, text in given.items()}
        # Names that remain after this substitution are factors; each cell substitutes its levels.
        named = dict.fromkeys(_PLACEHOLDER.findall(" ".join([*argv, *texts.values()])))
        remaining = [*words, *texts.values()]
        return cls(
            argv=words,
            metrics=[spec.to_params() for spec in specs],
            stdin=describe_input(stdin),
            hooks=texts,
            parameters=[name for name in named if mentions_parameter(name, remaining)],
            ignore_failure=ignore_failure,
            push=describe_files(push),
            # A new tuple, as only values other than the default object are stored.
            statuses=(*(statuses or [0]),),
            expect=expect,
            output=choose_output(output, specs, expected=expect is not None),
            disks=[{"role": "target", "host": disks}] if disks else [],
        )

    @classmethod
    def read_command(cls, cell: Cell) -> ExecParams:
        """Returns the cell's command."""
        return cell.workload.read_params(cls)

    @property
    def metric_specs(self) -> list[MetricSpec]:
        """The metrics that the user defined."""
        return [MetricSpec.from_params(spec) for spec in self.metrics]

    @property
    def placeholder_texts(self) -> list[str]:
        """All texts that may contain a `{name}`."""
        return [*self.argv, *self.hooks.values(), *(spec.file for spec in self.metric_specs)]

    def to_stored(self) -> dict[str, Any]:
        """Returns the parameters as a ledger keeps them: those with default values are omitted."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for name, value in plain.items():
            if isinstance(value, tuple):
                plain[name] = list(value)
        return plain


def _substitute_values(text: str, values: Mapping[str, str | int | float]) -> str:
    def get_value(match: re.Match[str]) -> str:
        name = match.group(1)
        return str(values[name]) if name in values else match.group()

    return re.sub(r"\{([A-Za-z0-9_-]+)\}", get_value, text)


def read_stored_command(cell: Cell) -> ExecParams | None:
    """Returns the command of a stored cell; None if its workload runs no user command."""
    kind = index_workload_kinds().get(cell.workload.name)
    if kind is None:
        return None
    found = kind.stored_params_of(cell.workload)
    return found if isinstance(found, ExecParams) else None
