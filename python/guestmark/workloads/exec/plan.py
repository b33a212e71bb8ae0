"""The plan of `guestmark exec`: one command on several platforms."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from guestmark.agent.wire import StandardOutput
from guestmark.core import registry
from guestmark.core.context import Caller
from guestmark.core.derived import check_derived_names
from guestmark.core.errors import UsageError
from guestmark.core.metric_spec import DEFAULT_METRICS, MetricSpec, parse_metrics, split_metrics
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import parse_platforms
from guestmark.core.units import format_count
from guestmark.plan.matrix import Entry, NullCells, Shape
from guestmark.plan.outline import Outline, Overrides, assemble_plan, override_outline
from guestmark.workloads.exec.command import (
    ExecParams,
    choose_output,
    mentions_parameter,
    name_factor,
    read_stored_command,
)
from guestmark.workloads.exec.files import describe_files, describe_input

T = TypeVar("T")

_FEWEST, _MOST = 10, 10_000  # number of blocks for commands that are only timed
_ENOUGH_S = 3.0  # seconds for each such command
_QUICK_BLOCKS = 6  # the smallest number of blocks that allows a verdict
# Seconds that are enough to measure a guest in two nested emulators, which spends most of them starting.
_SLOW_ENOUGH_S = 60.0
_TITLE = 60  # characters
# Seconds to measure of the 20 that --quick promises; the rest is for start and report.
_QUICK_S = 19.0


@dataclass(frozen=True, slots=True)
class ExecOptions(Overrides):
    """Options that the user gave to `exec`; None means the policy's default."""

    on: Sequence[str] = ("host",)
    metrics: Sequence[str] = ()
    stdin_path: str | None = None
    ignore_failure: bool = False
    # Further commands, which are compared with the first.
    commands: Sequence[Sequence[str]] = ()
    names: Sequence[str] = ()  # names of the commands in tables
    push: Sequence[str] = ()  # files that are copied to other machines
    # Time commands on the host alone, as hyperfine does, unless an option asks for more.
    timing: bool = False
    # Stop after six blocks or 20 s, with a verdict or without one.
    quick: bool = False
    # Shell commands for setup, prepare, check, conclude, cleanup: one for all commands, or one for each.
    hooks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # For all commands, or one for each. If empty, output goes through a pipe only if a metric reads it.
    output: Sequence[StandardOutput] = ()
    statuses: Sequence[int] = (0,)  # statuses that mean success
    # Shell text of commands that a shell runs, by the number of the command.
    texts: Mapping[int, str] = field(default_factory=dict)
    # Seconds for each command that is only timed; None stands for hyperfine's.
    enough_s: float | None = None
    caller: Caller | None = None  # None means this process


def build_plan(options: ExecOptions, argv: Sequence[str]) -> Plan:
    """Builds the plan for running `argv`. Raises `UsageError` for contradictory or unsupported options."""
    _check_options(options, argv)
    asked = parse_metrics(options.metrics)
    specs, derived = split_metrics(asked)
    known = {metric.name for metric in DEFAULT_METRICS}
    known |= {spec.metric.name for spec in specs}
    check_derived_names(derived, known | set(options.parameters))
    commands = [list(argv), *map(list, options.commands)]
    _check_parameters_are_used(commands, options)
    called = _name_commands(commands, options.names, options.texts)
    entries = []
    for number, ((key, label), words) in enumerate(zip(called, commands, strict=True)):
        params = _make_params(options, number, words, specs).to_stored()
        entries.append(Entry(WorkloadSpec("exec", params, label, key=key)))
    several = len(commands) > 1
    shape = Shape(tuple(entries), parse_platforms(options.on), within=() if several else None)
    shape, policy = _choose_policy(options, shape, len(commands))
    metrics = (*(spec.metric for spec in asked), *DEFAULT_METRICS)
    title = _make_title([entry.workload.label for entry in entries]) if several else ""
    options = replace(
        options, parameters={name_factor(name): levels for name, levels in options.parameters.items()}
    )
    outline = Outline("exec", shape, policy, metrics, title=title, derived=derived)
    plan = assemble_plan(override_outline(outline, options), options.caller or Caller.current())
    return replace(plan, context=replace(plan.context, typed=True))


def _check_options(options: ExecOptions, argv: Sequence[str]) -> None:
    """Raises `UsageError` for a command that cannot be run or options that do not fit the commands."""
    if not argv or not argv[0]:
        raise UsageError("no command was given", hint="e.g. guestmark exec --on host,uml -- sysbench cpu run")
    if any("\0" in argument for argument in argv):
        raise UsageError("the command contains a NUL character", hint="remove it: no program can receive one")
    if options.blocks is None and options.time_limit_s == 0:
        raise UsageError("--time-limit must be above 0", hint="e.g. --time-limit 10m")
    commands = len(options.commands) + 1
    if len(options.output) not in {0, 1, commands}:
        raise UsageError(
            f"--output is given {len(options.output)} times for {format_count(commands, 'command')}",
            hint="give it once, or once for each command",
        )


def _make_params(
    options: ExecOptions, number: int, words: list[str], specs: Sequence[MetricSpec]
) -> ExecParams:
    """Creates the parameters of command number `number`, whose argument list is `words`."""
    hooks = {name: _choose_given(texts, number) for name, texts in options.hooks.items()}
    parameters = []
    for name in options.parameters:
        if mentions_parameter(name, (*words, *hooks.values())):
            parameters.append(name_factor(name))
    return ExecParams(
        argv=words,
        metrics=[spec.to_params() for spec in specs],
        stdin=describe_input(options.stdin_path),
        ignore_failure=options.ignore_failure,
        statuses=tuple(options.statuses),
        shell=words[:-2] if number in options.texts else [],
        hooks=hooks,
        parameters=parameters,
        push=describe_files(options.push),
        output=choose_output(_choose_standard_output(options.output, number), specs),
    )


def _choose_policy(options: ExecOptions, shape: Shape, commands: int) -> tuple[Shape, Policy]:
    """Returns how often the commands run; a run that only times them has no copy of the baseline."""
    if options.quick:
        return _limit_to_quick(options, shape)
    if options.enough_s is not None and not (options.timing and _is_only_timed(options, shape)):
        raise UsageError(
            "--min-benchmarking-time applies to commands on this host that are only timed",
            hint="use --blocks, --time-limit or --for",
        )
    if _is_slow_alone(options, shape, commands):
        return replace(shape, null=NullCells.NONE), Policy(min_blocks=1, enough_s=_SLOW_ENOUGH_S)
    if not (options.timing and _is_only_timed(options, shape)):
        return shape, Policy()
    policy = Policy(warmup=0)
    if options.blocks is None:
        sides = commands * math.prod(map(len, options.parameters.values()))
        enough_s = _ENOUGH_S if options.enough_s is None else options.enough_s
        policy = replace(policy, min_blocks=_FEWEST, max_blocks=_MOST, enough_s=enough_s * sides)
    # hyperfine's -r and -M count runs, so each block is one run.
    if (options.blocks or options.max_blocks) is not None and options.iterations is None:
        policy = replace(policy, iterations=1)
    return replace(shape, null=NullCells.NONE), policy


def _limit_to_quick(options: ExecOptions, shape: Shape) -> tuple[Shape, Policy]:
    """Limits a plan to the fewest blocks that allow a verdict, or to 20 s. Raises `UsageError` for other goals."""
    goals = (
        options.blocks, options.precision, options.time_limit_s, options.find, options.min_blocks,
        options.max_blocks, options.enough_s,
    )  # fmt: skip
    if any(goal is not None for goal in goals):
        raise UsageError(
            "--quick cannot be combined with --blocks, --precision, --time-limit, --find, -m or -M",
            hint="give only one of them",
        )
    policy = Policy(
        min_blocks=_QUICK_BLOCKS, max_blocks=_QUICK_BLOCKS, enough_s=0.0, time_limit_s=_QUICK_S, iterations=1
    )
    if options.null is None:
        shape = replace(shape, null=NullCells.NONE)
    return shape, policy


def _is_only_timed(options: ExecOptions, shape: Shape) -> bool:
    """Returns whether commands are only timed, on this host alone and without options that need another kind of run.

    Such a run is as long as hyperfine's: at least ten times and three seconds for each command, or `blocks` times,
    without warm-up and without a copy of the baseline. If slow runs are searched for, they or the time limit end it.
    """
    goals = [options.null, options.precision, options.margin]
    if options.find is None:
        goals.append(options.time_limit_s)
    on_host = [str(platform) for platform in shape.platforms] == ["host"]
    return on_host and not options.settings and all(goal is None for goal in goals)


def _is_slow_alone(options: ExecOptions, shape: Shape, commands: int) -> bool:
    """Returns whether nothing is compared, guests take minutes to start, and no option sets how often to run.

    Such a run ends with the first block that takes a minute: one machine, with as many runs as fit.
    """
    goals = (
        options.null, options.blocks, options.min_blocks, options.max_blocks, options.precision, options.margin,
        options.find, options.time_limit_s, options.over_s, options.enough_s,
    )  # fmt: skip
    sides = len(shape.platforms) * commands * math.prod(map(len, options.parameters.values()))
    sides *= math.prod(map(len, registry.parse_settings(options.settings).values()))
    slow = all(platform.translates_twice for platform in shape.platforms)
    return options.timing and slow and sides == 1 and all(goal is None for goal in goals)


def _check_parameters_are_used(commands: Sequence[Sequence[str]], options: ExecOptions) -> None:
    texts = list(itertools.chain(*commands, *options.hooks.values()))
    for name in options.parameters:
        if not mentions_parameter(name, texts):
            raise UsageError(f"no command contains {{{name}}}", hint=f"e.g. -- program --option {{{name}}}")


def _make_title(labels: Sequence[str]) -> str:
    """Returns the commands themselves if a line has room for them, else their number."""
    together = ", ".join(labels)
    return together if len(together) <= _TITLE else f"{len(labels)} commands"


def _choose_given(given: Sequence[T], number: int) -> T:
    """Returns what applies to command `number`: hooks and outputs are given once for all commands, or for each."""
    return given[number] if len(given) > 1 else given[0]


def _choose_standard_output(output: Sequence[StandardOutput], number: int) -> StandardOutput | None:
    """Returns where the output of command `number` goes; None if that was not given."""
    if not output:
        return None
    return _choose_given(output, number)


def _name_commands(
    commands: Sequence[Sequence[str]], names: Sequence[str], texts: Mapping[int, str]
) -> list[tuple[str, str]]:
    """Returns key and label of each command, from its name if it has one, else from its program and command line.

    A single command needs no key.
    """
    if len(names) > len(commands):
        raise UsageError(
            f"{format_count(len(names), 'name')} for {format_count(len(commands), 'command')}",
            hint="give -n at most once for each command",
        )
    if len(commands) == 1:
        return [("", names[0] if names else texts.get(0, shlex.join(commands[0])))]
    found: list[tuple[str, str]] = []
    for number, words in enumerate(commands):
        name = names[number] if number < len(names) else ""
        first = texts[number].split()[0] if number in texts else words[0]
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", name or os.path.basename(first))
        key = _make_unique_key(stem, {key for key, _ in found})
        found.append((key, name or texts.get(number, shlex.join(words))))
    return found


def _make_unique_key(stem: str, taken: Collection[str]) -> str:
    key, number = stem, 2
    while key in taken:
        key, number = f"{stem}-{number}", number + 1
    return key


def map_names_to_command_lines(cells: Iterable[Cell]) -> dict[str, str]:
    """Returns the command line of each named command, by name."""
    texts = {}
    for cell in cells:
        command = read_stored_command(cell)
        if command is not None:
            texts[cell.workload.label] = shlex.join(command.argv)
    return {name: text for name, text in texts.items() if name and text and name != text}
