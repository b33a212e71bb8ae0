"""One session of the system's ssh with an agent at its other end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.binary import build_supervise_command
from guestmark.agent.frames import Transport
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import AgentError, MachineError, PlatformUnusableError
from guestmark.foreign.agents import find_for_machine
from guestmark.page.text import last_inert_line, make_inert
from guestmark.platforms.ssh_command import ON_THE_WAY, UNATTENDED, build_ssh_command, is_final


class UnreachableError(MachineError):
    """The machine does not answer, but may do so later, for instance because it is starting."""


# Parts of the lines that ssh itself prints after the proxy's messages.
_AFTER = (ON_THE_WAY, "kex_exchange_identification")


def explain_refusal(dest: str, said: str, status: int | None, printed: str = "") -> MachineError:
    """Returns the error for a session that failed to start: `said` by ssh itself, `printed` by the other side."""
    if ON_THE_WAY in said:
        return _explain_proxy_failure(dest, said)
    text = f"{said}\n{printed}"
    last = last_inert_line(said) or last_inert_line(printed)
    cause = classify_message(Speaker.SSH, text).cause
    if cause is Cause.CUT:
        return UnreachableError(
            f"{dest} {cause.words}: {last}", hint=f"try it yourself: ssh {dest}", cause=cause, console=said
        )
    if cause is not Cause.OTHER:
        why = f": {last}" if cause is Cause.UNKNOWN_NAME else ""
        kind = UnreachableError if cause.may_answer_later else MachineError
        return kind(
            f"{dest} {cause.words}{why}", hint=cause.hint.format(name=dest), cause=cause, console=said
        )
    if last:
        return MachineError(
            f"no session on {dest}: {last}", hint=f"try it yourself: ssh {dest}", console=said
        )
    how = "ssh printed nothing" if status is None else f"ssh exited with status {status}"
    return MachineError(f"no session on {dest}: {how}", hint=f"try it yourself: ssh {dest}", console=said)


def _explain_proxy_failure(dest: str, said: str) -> MachineError:
    """Returns the error for a jump host or proxy that did not reach the machine.

    The proxy printed the reason before ssh printed anything.
    """
    by_proxy = []
    for line in said.splitlines():
        if not any(part in line for part in _AFTER):
            by_proxy.append(line)
    before = "\n".join(by_proxy)
    why = last_inert_line(before) or "it closed the connection without a message"
    kind = MachineError if is_final(before) else UnreachableError
    return kind(
        f"{dest} cannot be reached, because its ProxyJump or ProxyCommand failed: {why}",
        hint=f"try it yourself: ssh {dest}",
        console=said,
    )


def make_session_error(dest: str, said: str, why: str, *, gone: bool) -> MachineError:
    """Returns the error for a session that had begun: `why` its agent failed, and whether the other side is `gone`."""
    if gone:
        last = last_inert_line(said)
        message = ": ".join(filter(None, (f"the connection to {dest} was lost", last)))
    else:
        message = f"the agent on {dest} failed"
    return MachineError(f"{message} ({why})", hint=f"check that it still answers: ssh {dest}", console=said)


GREETING = "guestmark-ssh-1"
READY = "guestmark-ready"
REFUSED = "guestmark-refused"
REMOVED = "guestmark-removed"
# Whether the machine already has the agent, as the script reports it.
KEPT, WANTED = "kept", "wanted"
DIRECTORY = "guestmark-agent-"
# How often the agent sends a byte, so that sshd notices a broken connection. Otherwise sshd would keep the session, and
# the agent the machine's lock, until TCP's keepalive two hours later.
ALIVE_S = 30
# The most agents, of different versions or architectures, that are kept on one machine.
MOST_KEPT = 4

# The command line prints the machine's system, architecture and boot id, then reads one line and executes it.
_FIRST = (
    "umask 077",
    # The login's output may not end with a newline.
    "echo",
    # A shell's own `read`, as each program that is started takes most of a millisecond.
    "read -r boot < /proc/sys/kernel/random/boot_id",
    f"echo {GREETING} $(uname -sm) $boot",
    "read -r script || exit 0",
    'eval "$script"',
)
# The script checks by the digest whether the machine has the agent; creates a private directory with room for it, where
# programs may be run; receives the agent unless the machine has it, keeps it if possible, and removes the oldest ones.
# The directory is removed when the agent has ended, which it does when its input ends, also if the connection breaks.
_SERVE = (
    "d=",
    "why=",
    'gone() { [ -z "$d" ] || rm -rf "$d"; }',
    "trap gone EXIT",
    # The agent is run through a descriptor in /proc, and free space for it is tested by writing zeros.
    "for path in /proc/self/fd/0 /dev/null /dev/zero; do "
    f'[ -e "$path" ] || {{ echo "{REFUSED} it has no $path"; exit 0; }}; done',
    "trap : HUP PIPE",
    'trap "exit 1" INT TERM',
    "c=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}",
    "keep=${c:+$c/guestmark/agents}",
    '[ "$most" -gt 0 ] || keep=',
    'same() { [ "$(sha256sum < "$1")" = "$digest  -" ] && "$1" --version > /dev/null; } 2> /dev/null',
    "k=",
    'if [ -n "$keep" ] && same "$keep/$digest"; then k=$keep/$digest; exec 3< "$k"; touch "$k" 2> /dev/null; fi',
    'for parent in "${TMPDIR:-/tmp}" /var/tmp "$XDG_RUNTIME_DIR" "$HOME" /dev/shm; do '
    '[ -d "$parent" ] || continue; '
    'd=$parent/$name-$$; mkdir -m 700 "$d" 2>/dev/null || { d=; why="$why; $parent cannot be written"; continue; }; '
    # `true` rather than `:`: a failed redirection of a special built-in ends the shell, for instance without inodes.
    # The file is empty so far, but executable, which it stays.
    'if ! true 2>/dev/null > "$d/agent"; then why="$why; $parent has no room for a file"; '
    'elif chmod 700 "$d/agent"; "$d/agent" 2>/dev/null; then '
    'if [ -n "$k" ] || head -c "$size" /dev/zero > "$d/agent" 2>/dev/null; then break; fi; '
    'why="$why; $parent has no room for $size bytes"; '
    'else why="$why; no program may be run in $parent"; fi; '
    'rm -rf "$d"; d=; done',
    f'[ -n "$d" ] || {{ echo "{REFUSED} ${{why#; }}"; exit 0; }}',
    f'if [ -n "$k" ]; then rm "$d/agent"; echo "{READY} {KEPT} $d"; else echo "{READY} {WANTED} $d"; '
    'head -c "$size" > "$d/agent"; '
    '[ "$(wc -c < "$d/agent")" -eq "$size" ] || exit 1; '
    'exec 3< "$d/agent"; '
    '{ if [ -n "$keep" ]; then mkdir -p "$keep" && { mv -f "$d/agent" "$keep/$digest"; '
    'same "$keep/$digest" || rm -f "$keep/$digest"; '
    'ls -t "$keep" | tail -n +$((most + 1)) | while read -r old; do rm -f "$keep/$old"; done; }; '
    'rmdir "$keep" "${keep%/*}"; fi; '  # empty, where there was no room
    'rm -f "$d/agent"; } > /dev/null 2>&1 < /dev/null; fi',
    f'/proc/self/fd/3 trials --directory "$d" --alive {ALIVE_S}',
)
# Removes files that no session uses: kept agents, and directories of sessions whose shell has ended.
_CLEAN = (
    "c=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}",
    "keep=${c:+$c/guestmark/agents}",
    f'out() {{ $really rm -rf "$1" && echo "{REMOVED} $1"; }}',
    '[ -z "$keep" ] || for f in "$keep"/*; do [ ! -f "$f" ] || out "$f"; done',
    '[ -z "$keep" ] || $really rmdir "$keep" 2> /dev/null',
    'for parent in "${TMPDIR:-/tmp}" /var/tmp "$XDG_RUNTIME_DIR" /dev/shm; do '
    f'for f in "$parent"/{DIRECTORY}*-*; do '
    'if [ -d "$f" ] && [ -O "$f" ] && [ ! -e "/proc/${f##*-}" ]; then out "$f"; fi; done; done',
    f"echo {READY} {KEPT} .",
)


# The longest word that csh accepts.
_LONGEST_WORD = 1024


def format_remote_command() -> str:
    """Returns the command line for the machine's login shell, quoted so that sh, csh and fish understand it alike."""
    script = "; ".join(_FIRST)
    # Inside single quotes these are what csh and fish treat specially.
    assert not set("'\\!\n") & set(script)
    assert len(script) < _LONGEST_WORD
    return f"exec /bin/sh -c '{script}'"


def quote_shell_words() -> list[str]:
    """Return the same command as an argument list, for tools that start a program without a login shell."""
    return ["/bin/sh", "-c", "; ".join(_FIRST)]


def format_serve_script(*, name: str, size: int, digest: str, most: int = MOST_KEPT) -> bytes:
    """Returns the line that makes the machine run an agent of that size and SHA-256.

    The agent's directory begins with `name`. The machine keeps at most `most` agents; with 0 it neither keeps nor looks
    for any.
    """
    return _format_script(_SERVE, name=name, size=size, digest=digest, most=most)


def _format_script(script: Sequence[str], **variables: str | int) -> bytes:
    """Returns the script as the one line that the remote command reads and runs."""
    text = "; ".join((*(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()), *script))
    assert "\n" not in text
    return f"{text}\n".encode()


# Bytes that a login may print before the greeting.
_CHATTER = 256 << 10
_STOP_S = 5.0
_PIECE = 64 << 10
# The most pieces of the error stream, which may be endless, that are read at once.
_PIECES = 16
# An existing shared connection is used.
OPTIONS = (*UNATTENDED, "-o", "ClearAllForwardings=yes")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The facts that the machine reported before the agent was started."""

    system: str
    arch: str
    boot_id: str


def make_ssh_words(dest: str) -> list[str]:
    """Returns the arguments of an ssh call that never prompts, up to the line that a shell at `dest` runs."""
    return [*build_ssh_command(), *OPTIONS, "--", dest]


class Session:
    """An ssh process whose streams are an agent's channel, and the private directory of that agent on the machine.

    It runs under a supervisor, which ends it when this process ends. The agent then reads end of file, kills the
    processes that it started and ends, and its directory is removed.
    """

    def __init__(self, dest: str, options: Sequence[str] = ()) -> None:
        self.dest = dest
        self.way = (*build_ssh_command(), *OPTIONS, *options, "--", dest)
        self.command: tuple[str, ...] = (*self.way, format_remote_command())
        # The command that a user can type to try it.
        self.by_hand = f"ssh {dest}"
        # Environment of the command; None for this process's own.
        self.environment: Mapping[str, str] | None = None
        # Descriptors that stay open until all processes of the command have ended.
        self.hold: tuple[int, ...] = ()
        # Agents that the machine keeps for later sessions.
        self.most_kept = MOST_KEPT
        self.directory = ""
        self.greeting: Greeting | None = None
        self._removed: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._said = bytearray()
        self._before = bytearray()
        # Seconds that the session has to end by itself.
        self._patience_s = _STOP_S
        # Total bytes of the error stream.
        self._heard = 0
        self._ended = False
        # True if the other side had already ended when the session was closed.
        self.gone = False

    def open(self, deadline: float) -> Transport:
        """Connects, sends the agent and returns its channel; `deadline` is on the monotonic clock.

        Raises `MachineError` with a one-line message if ssh or the machine fails, `PlatformUnusableError` if there is
        no agent for the machine, `AgentNotBuiltError` if one can be built.
        """
        self._connect(deadline)
        assert self.greeting is not None
        agent = self._choose_agent_binary(self.greeting).read_bytes()
        name = f"{DIRECTORY}{secrets.token_hex(8)}"
        # Only an agent that is kept is looked for by its digest, which takes milliseconds to compute.
        digest = hashlib.sha256(agent).hexdigest() if self.most_kept else ""
        script = format_serve_script(name=name, size=len(agent), digest=digest, most=self.most_kept)
        self._send_all(script, deadline)
        there, self.directory = self._wait_for_directory(deadline)
        if there != KEPT:
            self._send_all(agent, deadline)
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        return Transport(stdout.fileno(), stdin.fileno(), self.close)

    def clean_up(self, deadline: float, *, dry_run: bool) -> list[str]:
        """Removes the agents that are kept there and the directories of sessions that have ended; returns the paths.

        With `dry_run` it removes nothing. Raises `MachineError` like `open`.
        """
        try:
            self._connect(deadline)
            really = ":" if dry_run else ""
            self._send_all(_format_script(_CLEAN, really=really), deadline)
            self._wait_for_directory(deadline)
        finally:
            self.close()
        return self._removed

    def _connect(self, deadline: float) -> None:
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                build_supervise_command(self.command, lifeline_fd=lifeline, hold=self.hold),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(lifeline, *self.hold),
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"{self.command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(lifeline)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self.greeting = self._wait_for_greeting(deadline)

    def _wait_for_directory(self, deadline: float) -> tuple[str, str]:
        """Returns whether the machine has the agent (`KEPT` or `WANTED`), and the session's directory."""
        word, _, rest = self._read_line(deadline).partition(" ")
        while word == REMOVED:
            self._removed.append(make_inert(rest))
            word, _, rest = self._read_line(deadline).partition(" ")
        if word == REFUSED:
            raise MachineError(
                f"{self.dest} has no place for the agent: {rest}",
                hint="set TMPDIR there to a directory with free space where programs may run",
            )
        if word != READY:
            raise self.make_refusal_error()
        there, _, directory = rest.partition(" ")
        return there, directory

    def read_errors(self) -> str:
        """Returns what ssh and the machine's own programs have printed on the error stream so far."""
        self._collect_errors(0)
        # ssh ends its own lines with CR LF.
        text = self._said.decode(errors="replace").replace("\r\n", "\n")
        return make_inert(text, lines=True)

    def make_session_error(self, error: AgentError) -> MachineError:
        """Returns the error for a session whose agent failed after the session had begun."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(1.0)
        return self.make_failure_error(error.message)

    def make_refusal_error(self, printed: str = "") -> MachineError:
        """Return the error for a session that could not be opened; `printed` is what the other side printed instead."""
        return explain_refusal(self.dest, self.read_errors(), self.status(), printed)

    def make_failure_error(self, why: str) -> MachineError:
        """Return the error for a session whose agent failed later, for the reason `why`."""
        return make_session_error(self.dest, self.read_errors(), why, gone=self.gone)

    def close(self) -> None:
        """Ends the session. The agent has ended when this returns, unless the machine does not answer."""
        process = self._process
        if process is None or self._ended:
            return
        self._ended = True
        self.gone = _has_ended(process)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            self._wait_for_exit(process, time.monotonic() + self._patience_s)
        finally:
            self._end_ssh()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _wait_for_exit(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Waits for ssh's exit, after the agent has ended and its directory has been removed."""
        assert process.stdout is not None
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                os.read(process.stdout.fileno(), _PIECE)
            self._collect_errors(0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.005)
                return

    def _end_ssh(self) -> None:
        """Has the supervisor end ssh at once."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _choose_agent_binary(self, greeting: Greeting) -> Path:
        if not greeting.system:
            raise PlatformUnusableError(
                f"cannot find out what {self.dest} runs: uname is not in its PATH",
                hint=f"to see its PATH: {self.by_hand} env",
            )
        if greeting.system != "Linux":
            raise PlatformUnusableError(
                f"{self.dest} runs {greeting.system}",
                hint="only Linux machines can be measured",
            )
        return find_for_machine(greeting.arch)

    def _wait_for_greeting(self, deadline: float) -> Greeting:
        while True:
            words = self._read_line(deadline).split(" ")
            if words[0] == GREETING:
                # There are no words from uname if it is not installed.
                names = words[1:] if len(words) > 2 else []
                system, arch, boot_id = (*names, "", "", "")[:3]
                return Greeting(system, arch, boot_id)
            self._check_chatter()

    def _check_chatter(self) -> None:
        """Raises `MachineError` if the login has printed too much before the greeting."""
        if max(len(self._before), self._heard) > _CHATTER:
            # There is no agent yet, and such a login does not end by itself, so the session is ended at once.
            self._patience_s = 0.0
            raise MachineError(
                f"{self.dest} never stops printing at login",
                hint=f"check its shell's start-up files: {self.by_hand} true",
            )

    def _read_line(self, deadline: float) -> str:
        """Returns one line from the other side, read byte by byte, because the following bytes may be the agent's."""
        assert self._process is not None
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        line = bytearray()
        while len(line) < _CHATTER:
            left = deadline - time.monotonic()
            if left <= 0:
                raise MachineError(
                    f"{self.dest} did not answer in time",
                    hint=f"try it yourself: {self.by_hand}",
                    console=self.read_errors(),
                )
            ready, _, _ = select.select([source], [], [], min(left, 0.2))
            self._collect_errors(0)
            if self.greeting is None:
                self._check_chatter()
            if not ready:
                continue
            byte = os.read(source, 1)
            if not byte:
                raise self.make_refusal_error(make_inert(self._before.decode(errors="replace"), lines=True))
            self._before += byte
            if byte == b"\n":
                return line.decode(errors="replace").strip()
            line += byte
        return line.decode(errors="replace")

    def _send_all(self, data: bytes, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        target, view = self._process.stdin.fileno(), memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0:
                raise MachineError(
                    f"copying the agent to {self.dest} took too long",
                    hint=f"check whether it is busy or the connection is slow: {self.by_hand}",
                    console=self.read_errors(),
                )
            _, ready, _ = select.select([], [target], [], min(left, 0.2))
            self._collect_errors(0)
            if ready:
                try:
                    view = view[os.write(target, view[:_PIECE]) :]
                except BrokenPipeError as error:
                    raise self.make_refusal_error() from error

    def _collect_errors(self, timeout_s: float) -> None:
        """Reads what has arrived on the error stream; the beginning and the end of long output are kept."""
        if self._process is None or self._process.stderr is None or self._process.stderr.closed:
            return
        source = self._process.stderr.fileno()
        for _ in range(_PIECES):
            if not select.select([source], [], [], timeout_s)[0]:
                return
            data = b""
            with contextlib.suppress(BlockingIOError):
                data = os.read(source, _PIECE)
            if not data:
                return
            # An agent sends lone newlines to keep the connection alive.
            if data.strip(b"\n"):
                self._heard += len(data)
                self._said += data
            if len(self._said) > _CHATTER:
                del self._said[_CHATTER // 2 : -_CHATTER // 4]
            timeout_s = 0

    def status(self) -> int | None:
        """Return the exit status of the command, None while it runs."""
        assert self._process is not None
        try:
            return self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Returns whether the other side has closed its output."""
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        return not os.read(process.stdout.fileno(), _PIECE)
    return False


@contextlib.contextmanager
def close_session_afterwards(made: Session) -> Iterator[Session]:
    """Yields the session, and closes it however the context is left."""
    try:
        yield made
    finally:
        made.close()
