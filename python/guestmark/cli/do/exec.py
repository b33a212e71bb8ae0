"""Measures commands on the host and in guests."""

from __future__ import annotations

from guestmark.agent.wire import StandardOutput
from guestmark.cli import hyperfine, options
from guestmark.cli.commands.exec import Options
from guestmark.cli.measure import measure_plan
from guestmark.cli.outputs import Outputs, collect_outputs
from guestmark.cli.style import Style
from guestmark.cli.verbs import describe_version
from guestmark.core.context import Caller
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.page.say import say, tell
from guestmark.workloads.exec.plan import ExecOptions, build_plan


def run(given: Options) -> int:
    """Measures the commands, and returns the exit status."""
    if given.version:
        # `hyperfine --version` is typed before a command's name, too.
        tell(describe_version())
        return ExitStatus.ALL_MEASURED
    shell = hyperfine.parse_shell(given.shell, without=given.no_shell)
    commands = _parse_commands(given, shell)
    first, *others = (command.words for command in commands)
    texts = hyperfine.index_texts(commands)
    if texts and shell is None and not given.quiet:
        say("sh -c runs commands that need a shell; its start-up time is measured and subtracted")
    targets, inherit = hyperfine.parse_outputs(given.output)
    show_output = given.show_output or inherit
    if show_output:
        targets = (StandardOutput.PIPE,)
    statuses = hyperfine.parse_ignored_statuses(given.ignored_statuses)
    on = options.list_platforms(given.on, given.machine) or ["host"]
    # A parameter may have the name of a factor of machines if no machine is given factors.
    machines = (any(on) and on != ["host"]) or bool(given.settings or given.kernel)
    request = ExecOptions(
        on=on,
        metrics=given.metrics or (),
        stdin_path=None if given.stdin == hyperfine.NO_INPUT else given.stdin,
        ignore_failure=given.ignore_failure or statuses == (),
        statuses=(0, *(statuses or ())),
        push=given.push or (),
        commands=others,
        names=_list_command_names(given),
        output=targets,
        texts=texts,
        enough_s=given.min_time,
        quick=given.quick,
        timing=not given.fail_if and not given.prove,
        parameters=hyperfine.parse_parameters(given.lists, given.scans, given.step, machines=machines),
        hooks=options.collect_hooks(
            len(commands),
            setup=given.setup,
            prepare=given.prepare,
            check=given.check,
            conclude=given.conclude,
            cleanup=given.cleanup,
        ),
        caller=Caller.current(),
        **given.collect_overrides(),
    )
    outputs = _collect_outputs(given, show_output=show_output)
    return measure_plan(build_plan(request, first), given.ledger, outputs)


def _collect_outputs(given: Options, *, show_output: bool) -> Outputs:
    return collect_outputs(
        given,
        show_output=show_output,
        partial=given.partial,
        style=given.style,
        sort=given.sort,
        unit=given.unit,
        has_reference=given.reference is not None,
        quiet=given.quiet or given.style is Style.NONE,
    )


def _parse_commands(given: Options, shell: tuple[str, ...] | None) -> list[hyperfine.TypedCommand]:
    """Parses the commands in the order of the tables: the reference, then as typed. Raises `UsageError` without any."""
    argv, texts = given.argv, given.command_texts
    if not argv and not texts:
        raise UsageError(
            "missing argument '-- COMMAND...'", hint="guestmark exec --help lists its options and arguments"
        )
    if words := hyperfine.find_command_texts(argv or ()):
        argv, texts = None, [*words, *(texts or ())]
    reference = [] if given.reference is None else [given.reference]
    return [
        *hyperfine.parse_commands((), reference, shell),
        *hyperfine.parse_commands(argv or (), texts, shell),
    ]


def _list_command_names(given: Options) -> list[str]:
    names = given.names or []
    if given.reference is not None:
        return [given.reference_name or "", *names]
    if given.reference_name is not None:
        raise UsageError(
            "--reference-name requires --reference", hint="e.g. --reference ./old --reference-name old"
        )
    return names
