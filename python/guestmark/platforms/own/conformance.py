"""Checks whether a definition provides what measuring needs: tests each point on machines, and tells what to change."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from guestmark.agent.exec_cost import measure_exec_cost
from guestmark.core.errors import GuestmarkError, MachineError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.temporary import open_unnamed_file
from guestmark.disks import processes
from guestmark.page.text import make_inert
from guestmark.platforms.commands import Ended, run_command, run_supervised, run_to_success
from guestmark.platforms.own.definition import Definition
from guestmark.platforms.own.lifecycle import CreatedMachine, create_machine
from guestmark.platforms.own.platform import OwnPlatform, parse_pid
from guestmark.setting.machine import START, Start

_BINARY_BYTES = 64 << 20
# The most bytes that any point's command prints, including what a faulty exec adds.
_MOST_OUTPUT = 2 * _BINARY_BYTES
_SHORT_COMMANDS = 1000
# These include statuses that shells use for signals (137), and that of ssh's own errors (255).
_STATUSES = (0, 1, 42, 126, 137, 255)
# Arguments that a shell, a client or a terminal in between might change: spaces, quotes, variables, escapes, empty.
_ARGUMENTS = ("a b", "", "'", '"', "$HOME", "\\n", "*", "-n", "--help", "{id}", "ü", "line\nline", "a;b|c&d")
_PRINTS_NOTHING = (
    "exec must not print anything of its own: omit banners, -v, prompts, line ends; "
    "login shells print messages of the day"
)
_ERROR_LINE = b"err\n"  # what the test of both outputs writes to standard error
_COMMAND_S = 30.0
_BINARY_S = 180.0
_GONE_S = 10.0
_POLL_S = 0.2
_SESSION_S = 3.0  # seconds that an agent has to be answering, however quickly it runs the commands
_STAY_S = 6.0  # seconds that a machine has to exist, however quickly the other points were tested


class PointFailedError(Exception):
    """A point failed; `seen` is what was observed, `change` what to change in the definition."""

    def __init__(self, seen: str, change: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.change = change


@dataclass(frozen=True, slots=True)
class Point:
    """One point and its result; `failed`, `change` and `not_tried` are empty if the point holds.

    `not_tried` names the failed point on which this one depends.
    """

    name: str
    took_s: float
    failed: str = ""
    change: str = ""
    note: str = ""
    not_tried: str = ""


def check_definition(definition: Definition) -> Iterator[Point]:
    """Test one point after the other and yield the results. All machines are destroyed, however this ends."""
    with contextlib.ExitStack() as stack:
        machines: list[CreatedMachine] = []

        def create() -> str:
            machines.append(
                stack.enter_context(create_machine(definition, definition.list_placeholder_values({})))
            )
            return f"{machines[0].created - machines[0].began:.2g} s"

        first = _run_check("create makes a machine", create)
        yield first
        if first.failed:
            return
        made = machines[0]
        entry = _run_check("a command runs in it at once", functools.partial(_check_entry, made))
        yield entry
        broken_stream = ""
        if not entry.failed:
            checks = _CHECKS
            if definition.plain:
                checks = _PLAIN_CHECKS
            for name, check in checks.items():
                point = _run_check(name, functools.partial(check, made))
                if point.failed and check in _STREAM_CHECKS:
                    broken_stream = broken_stream or name
                yield point
            for name, attended, check in _OPTIONAL:
                if attended(definition):
                    yield _run_check(name, functools.partial(check, made))
            yield _run_check("it stays until it is destroyed", functools.partial(_check_stay, made))
        if definition.create:
            yield _run_check(
                "destroy removes it, and nothing else",
                functools.partial(_check_destroy, made, stack, also_second=not entry.failed),
            )
    if not entry.failed:
        yield from _check_measuring(definition, broken_stream)


def _check_measuring(definition: Definition, broken_stream: str) -> Iterator[Point]:
    """Test what trials do with machines, with a new machine for each point.

    After a failed point about streams nothing is tested: no agent could answer, and each attempt would wait for
    `timeouts.exec`.
    """
    for name, check in _list_measuring_checks(definition):
        if broken_stream:
            yield Point(name, 0.0, not_tried=broken_stream)
        else:
            yield _run_check(name, check)


def _list_measuring_checks(definition: Definition) -> Iterator[tuple[str, Callable[[], str]]]:
    platform = OwnPlatform(PlatformSpec.read(f"own:{definition.name}").inner)
    if definition.plain:
        yield "commands are timed from outside", functools.partial(_check_outside_timing, platform)
    else:
        yield (
            f"the agent answers, and runs {_SHORT_COMMANDS:,} commands",
            functools.partial(_check_agent, platform, least_s=_SESSION_S),
        )
    if definition.create:
        yield "each machine is a new one", functools.partial(_check_agent, platform, commands=1)
    if definition.can_restore:
        yield "a restored machine continues from the saved one", functools.partial(_check_restored, platform)


def _run_check(name: str, check: Callable[[], str]) -> Point:
    begin = time.monotonic()
    try:
        note = check()
    except PointFailedError as error:
        return Point(name, time.monotonic() - begin, error.seen, error.change)
    except GuestmarkError as error:
        return Point(name, time.monotonic() - begin, error.message, error.hint)
    return Point(name, time.monotonic() - begin, note=note)


def _run_by_exec(
    made: CreatedMachine, command: Sequence[str], stdin: bytes = b"", limit_s: float = _COMMAND_S
) -> Ended:
    """Run a command in the machine by the definition's `exec`. Raises `PointFailedError` if it does not end."""
    argv = made.fill(made.definition.exec, command)
    try:
        # Ends all processes of the command: killing only a shell would leave the tool that it started.
        ended = run_command(
            argv, made.environment, limit_s,
            stdin=stdin, hold=made.hold, kept_output=_MOST_OUTPUT, most_output=_MOST_OUTPUT,
        )  # fmt: skip
    except MachineError as error:
        raise PointFailedError(error.message, error.hint) from error
    if ended.status is None:
        raise PointFailedError(
            f"{shlex.join(command)[:60]} {ended.why}",
            "exec has to end when the command ends, and to pass on the end of standard input (podman exec needs -i)",
        )
    return ended


def _check_entry(made: CreatedMachine) -> str:
    begin = time.monotonic()
    done = _run_by_exec(made, ["true"])
    if done.status != 0:
        raise PointFailedError(
            f"exec … true {done.describe()}",
            "if the machine needs time after create, define ready: a command that succeeds once exec works",
        )
    return f"{(time.monotonic() - begin) * 1e3:.0f} ms for each exec"


def _check_output(made: CreatedMachine, *, apart: bool = True) -> str:
    """Compare the output of `echo`; also tests standard error if both streams have to arrive `apart`."""
    script = "echo out"
    if apart:
        script += "; echo err >&2"
    done = _run_by_exec(made, ["/bin/sh", "-c", script])
    if done.stdout.replace(b"\r", b"") == b"out\n" and b"\r" in done.stdout:
        raise PointFailedError(
            "lines end in a carriage return", "exec must not create a terminal: omit -t, --tty"
        )
    if b"err" in done.stdout and b"out" in done.stdout:
        raise PointFailedError(
            "standard error arrives in standard output",
            "exec has to keep the two streams apart: omit -t, 2>&1",
        )
    if not done.stdout:
        raise PointFailedError(
            "no output of `echo out` arrives",
            "exec has to pass on a command's arguments unchanged, and its output",
        )
    if done.stdout == _ERROR_LINE:
        raise PointFailedError(
            "standard error arrives as standard output", "exec must not swap the two streams"
        )
    if done.stdout != b"out\n":
        raise PointFailedError(
            # `repr` makes line ends and control characters visible.
            f"`echo out` arrived as {done.stdout.decode(errors='replace')[:60]!r}",
            _PRINTS_NOTHING,
        )
    if apart and not done.errors.endswith(_ERROR_LINE):
        raise PointFailedError("standard error does not arrive", "exec has to pass standard error on")
    return ""


def _check_status(made: CreatedMachine) -> str:
    for status in _STATUSES:
        found = _run_by_exec(made, ["/bin/sh", "-c", f"exit {status}"]).status
        if found != status:
            raise PointFailedError(
                f"a command that exited with status {status} is reported as exited with {found}",
                "exec has to exit with the command's own exit status",
            )
    return ""


def _check_argument_passing(made: CreatedMachine) -> str:
    done = _run_by_exec(made, ["printf", "%s\\n--\\n", *_ARGUMENTS])
    found = done.stdout.decode(errors="replace").split("\n--\n")[:-1]
    for wanted, arrived in zip(_ARGUMENTS, [*found, *[""] * len(_ARGUMENTS)], strict=False):
        if wanted != arrived:
            raise PointFailedError(
                f"the argument {wanted!r} arrives as {make_inert(arrived)[:40]!r}",
                "a program that takes a shell's command line needs {line}, as in ssh HOST {line}; "
                "one that takes separate arguments needs {command}",
            )
    return ""


def _check_binary(made: CreatedMachine) -> str:
    given = os.urandom(1 << 20) * (_BINARY_BYTES >> 20)
    begin = time.monotonic()
    done = _run_by_exec(made, ["cat"], given, _BINARY_S)
    took = time.monotonic() - begin
    if len(done.stdout) > len(given):
        raise PointFailedError(
            f"cat returns {len(done.stdout) - len(given)} bytes more than it was sent", _PRINTS_NOTHING
        )
    if len(done.stdout) < len(given):
        raise PointFailedError(
            f"cat returns only {len(done.stdout)} of {len(given)} bytes",
            "exec has to pass on standard input and output without a limit (podman exec needs -i; an API that returns "
            "only output cannot carry the agent: set plain = true, and commands are timed from outside)",
        )
    if hashlib.sha256(done.stdout).digest() != hashlib.sha256(given).digest():
        raise PointFailedError(
            "bytes are changed in transit", "exec must not change bytes: omit terminals and conversions"
        )
    return f"{2 * len(given) / took / 1e6:.0f} MB/s"


def _check_end_of_input(made: CreatedMachine) -> str:
    """Check that a command ends if its `exec` is killed, because its input ends, like the agent's."""
    mark = f"guestmark-check-{secrets.token_hex(4)}"
    argv = made.fill(made.definition.exec, ["/bin/sh", "-c", f"cat > /dev/null; : {mark}"])
    with (
        open_unnamed_file() as printed,
        # Leaving the context kills it.
        run_supervised(argv, made.environment, printed, printed, hold=made.hold, takes_input=True),
    ):
        _wait_for_condition(
            lambda: mark in _format_commands(made), f"{mark} is not seen among the machine's processes"
        )
    deadline = time.monotonic() + _GONE_S
    while mark in _format_commands(made):
        if time.monotonic() > deadline:
            raise PointFailedError(
                "a command whose exec was killed keeps running in the machine",
                "exec has to close the command's input when killed, or interrupted commands keep running until destroy",
            )
        time.sleep(_POLL_S)
    return ""


def _check_streaming(made: CreatedMachine) -> str:
    """Check that output arrives while a command still runs, as an agent's answers do."""
    argv = made.fill(made.definition.exec, ["/bin/sh", "-c", "echo out; cat > /dev/null"])
    with (
        open_unnamed_file() as printed,
        open_unnamed_file() as errors,
        # Leaving the context kills it.
        run_supervised(argv, made.environment, printed, errors, hold=made.hold, takes_input=True),
    ):
        deadline = time.monotonic() + _GONE_S
        while not os.fstat(printed.fileno()).st_size:
            if time.monotonic() > deadline:
                raise PointFailedError(
                    "output does not arrive before the command has ended",
                    "exec has to pass on output as it is written; if it cannot, set plain = true, and commands are "
                    "timed from outside",
                )
            time.sleep(_POLL_S)
    return ""


def _check_stay(made: CreatedMachine) -> str:
    if not made.definition.create:
        return ""
    time.sleep(max(0.0, made.created + _STAY_S - time.monotonic()))
    done = _run_by_exec(made, ["true"])
    if done.status != 0:
        raise PointFailedError(
            f"the machine has ended by itself: exec … true {done.describe()}",
            "create has to start a machine that keeps running, e.g. with sleep infinity as its program",
        )
    return f"{time.monotonic() - made.created:.2g} s so far"


def _format_commands(made: CreatedMachine) -> str:
    """Return the command lines of all processes in the machine, except the one that reads them."""
    script = (
        'for f in /proc/[0-9]*/cmdline; do [ "$f" = "/proc/$$/cmdline" ] || '
        'tr "\\0" " " < "$f"; done 2>/dev/null; true'
    )
    return _run_by_exec(made, ["/bin/sh", "-c", script]).stdout.decode(errors="replace")


def _wait_for_condition(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _GONE_S
    while not holds():
        if time.monotonic() > deadline:
            raise PointFailedError(otherwise, "the machine needs its own /proc, and /bin/sh with tr")
        time.sleep(_POLL_S)


def _check_environment(made: CreatedMachine) -> str:
    done = _run_by_exec(
        made,
        ["/bin/sh", "-c", 'for p in /proc/self/fd/0 /dev/null /dev/zero; do [ -e "$p" ] || echo "$p"; done'],
    )
    missing = done.stdout.decode(errors="replace").split()
    if missing:
        raise PointFailedError(
            f"the machine has no {', '.join(missing)}", "the agent needs /proc and /dev: mount them"
        )
    for name in ("uname", "head", "wc", "mkdir", "chmod"):
        if _run_by_exec(made, ["/bin/sh", "-c", f"command -v {name}"]).status:
            missing.append(name)
    if missing:
        raise PointFailedError(
            f"the machine has no {', '.join(missing)}",
            "use an image with a shell and these programs (busybox has all of them)",
        )
    return ""


def _check_list(made: CreatedMachine) -> str:
    if made.id not in _list_ids(made):
        raise PointFailedError(
            "list does not print the machine's id", "list has to print the ids of all machines, one per line"
        )
    return ""


def _list_ids(made: CreatedMachine) -> list[str]:
    """Return the words that the definition's command `list` prints. Raises `MachineError`."""
    definition = made.definition
    return run_to_success(definition.list.fill(made.values), made.environment, _COMMAND_S).split()


def _check_pid(made: CreatedMachine) -> str:
    said = made.run(made.definition.pid, _COMMAND_S).strip()
    if parse_pid(said) is None:
        raise PointFailedError(
            f"pid prints {make_inert(said)[:40]!r}, which is not the id of a machine's process",
            "pid has to print only the process id of the machine's first process",
        )
    return f"process {said}"


def _check_destroy(made: CreatedMachine, stack: contextlib.ExitStack, *, also_second: bool) -> str:
    """Destroy the first machine while a second one exists: exec then has to fail in the first and work in the second.

    `also_second` is False where commands cannot be run in the machines: then the first one is only destroyed.
    """
    if not also_second:
        stack.close()
        return ""
    with _make_second_machine(made.definition) as second:
        program = _find_program(made)
        begin = time.monotonic()
        stack.close()
        took = time.monotonic() - begin
        if _run_by_exec(made, ["true"]).status == 0:
            raise PointFailedError(
                "commands still run in a machine that was destroyed",
                "destroy has to remove the machine {id} before it returns",
            )
        if program is not None and _is_left(program):
            raise PointFailedError(
                f"process {program.pid} of the destroyed machine still runs",
                "destroy has to end all of the machine's processes before it returns",
            )
        if made.definition.list and made.id in _list_ids(made):
            raise PointFailedError(
                "list still prints the destroyed machine's id", "destroy has to remove it, not only stop it"
            )
        if _run_by_exec(second, ["true"]).status != 0:
            raise PointFailedError(
                "another machine was destroyed, too",
                "destroy may end only the machine {id}; create has to use {id} as its name",
            )
    return f"{took:.2g} s"


@dataclass(frozen=True, slots=True)
class _Program:
    """A process of this host; `started` distinguishes it from a later one with the same id."""

    pid: int
    started: str


def _find_program(made: CreatedMachine) -> _Program | None:
    """Return the process that the definition's command `pid` names; None if there is no such command."""
    if not made.definition.pid:
        return None
    with contextlib.suppress(MachineError, OSError):
        pid = parse_pid(made.run(made.definition.pid, _COMMAND_S).strip())
        if pid is not None:
            return _Program(pid, processes.read_status(pid)[19])
    return None


def _is_left(program: _Program) -> bool:
    """Return whether a process still exists after it has had time to end."""
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            fields = processes.read_status(program.pid)
        except OSError:
            return False
        if fields[19] != program.started or fields[0] == "Z":
            return False
        if time.monotonic() > deadline:
            return True
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _make_second_machine(definition: Definition) -> Iterator[CreatedMachine]:
    second = contextlib.ExitStack()
    try:
        made = second.enter_context(create_machine(definition, definition.list_placeholder_values({})))
    except MachineError as error:
        raise PointFailedError(
            f"a second machine cannot be created beside the first: {error.message}",
            "two machines have to exist at once: use {id} in everything that belongs to a machine",
        ) from error
    try:
        yield made
    finally:
        second.close()


def _check_agent(platform: OwnPlatform, commands: int = _SHORT_COMMANDS, least_s: float = 0.0) -> str:
    """Run commands in a session of at least `least_s` seconds, and return what each of them takes."""
    cell = Cell("check", WorkloadSpec("check"), PlatformSpec.read(platform.name))
    try:
        with platform.start(cell) as machine:
            machine.attest()
            begin = time.monotonic()
            for _ in range(commands):
                machine.agent.exec(["true"], timeout_s=_COMMAND_S)
            took = time.monotonic() - begin
            if took < least_s:
                time.sleep(least_s - took)
                machine.agent.exec(["true"], timeout_s=_COMMAND_S)
            return f"{_format_ms(took / commands)} each"
    except MachineError as error:
        if error.hint:
            raise
        raise PointFailedError(
            error.message,
            "exec has to run for as long as its command does: remove limits on time, memory or processes",
        ) from error


def _format_ms(seconds: float) -> str:
    """Format seconds as milliseconds with at least two digits, never as a power of ten."""
    milliseconds = seconds * 1e3
    if milliseconds >= 10:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds:.2g} ms"


def _check_outside_timing(platform: OwnPlatform) -> str:
    cell = Cell("check", WorkloadSpec("check"), PlatformSpec.read(platform.name))
    with platform.start(cell) as machine:
        machine.attest()
        cost = measure_exec_cost(machine.agent)
        return f"an empty command takes {cost.describe()}, which is subtracted"


def _check_restored(platform: OwnPlatform) -> str:
    """Save a machine, restore another one from it, and return which parts of the first continue in it."""
    cell = Cell(
        "check", WorkloadSpec("check"), PlatformSpec.read(platform.name), {START.name: Start.RESTORED}
    )
    with platform.start(cell) as machine:
        restored = machine.attest().restored
        assert restored is not None
        return f"{restored.describe()}; saved in {restored.template_s:.2g} s"


_CHECKS: dict[str, Callable[[CreatedMachine], str]] = {
    "the agent finds what it needs": _check_environment,
    "both outputs arrive, separate and unchanged": _check_output,
    "exit statuses pass through": _check_status,
    "arguments pass through": _check_argument_passing,
    "output arrives while a command runs": _check_streaming,
    f"{_BINARY_BYTES >> 20} MiB pass both ways": _check_binary,
    "a command ends when its exec is killed": _check_end_of_input,
}
_PLAIN_CHECKS: dict[str, Callable[[CreatedMachine], str]] = {
    "output arrives unchanged": functools.partial(_check_output, apart=False),
    "exit statuses pass through": _check_status,
    "arguments pass through": _check_argument_passing,
}
# If one of these checks fails, no agent can communicate.
_STREAM_CHECKS = (_check_output, _check_streaming, _check_binary)
_OPTIONAL: tuple[tuple[str, Callable[[Definition], bool], Callable[[CreatedMachine], str]], ...] = (
    ("list prints it", lambda definition: bool(definition.list), _check_list),
    ("pid is a process of this host", lambda definition: bool(definition.pid), _check_pid),
)
