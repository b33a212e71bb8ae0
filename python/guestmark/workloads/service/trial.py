"""The trial of `service`: starts a server, runs its client, and stops the server."""

from __future__ import annotations

import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from guestmark.agent.background import Background
from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.results import CallError, ExecResult
from guestmark.core import regex
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import PlatformUnusableError, UsageError, WorkloadError
from guestmark.core.metric import Measurement
from guestmark.core.metric_spec import WALL
from guestmark.core.model import Cell, Plan
from guestmark.core.temporary import scratch_directory
from guestmark.core.units import parse_duration
from guestmark.page.text import last_inert_line
from guestmark.platforms.base import Machine
from guestmark.platforms.network.trial_network import list_reachable_ports, make_unreachable_error
from guestmark.setting.network import NETWORK
from guestmark.workloads.common.networks import find_network, require_network
from guestmark.workloads.common.program import find_program_packages
from guestmark.workloads.service import Served, ServiceParams, ServiceWorkload, Side, substitute

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": _PATH, "LC_ALL": "C", "HOME": "/nonexistent"}
_EVERYWHERE, _LOOPBACK = "0.0.0.0", "127.0.0.1"
_NOBODY = 65534
_SETUP_S = 300.0
# Seconds to wait after SIGTERM, and again after SIGKILL.
_STOP_S = 10.0
# Seconds for which one call on the client's side tries to connect to a server that is not ready yet.
_LOOK_S = 0.25
# Seconds between two runs of the readiness command.
_PAUSE_S = 0.02
# Bytes of each stream that the agent passes on while nobody may be reading; more would stop the server in its writes.
_OUTPUT_LIMIT = 1 << 20
# Every machine has it, in memory: no machine's disk flatters or burdens its server.
_PARENT = Path("/dev/shm")
_LISTENING = "0A"  # the state of a listening socket in /proc/net/tcp


class ServiceTrial(ServiceWorkload):
    """Runs one server from `prepare` to `cleanup`; each iteration is one run of the client."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        super().__init__(plan, cell)
        self._server: Background | None = None
        self._served = self.facts.add(
            Served(side=self.params.side.value, address=_LOOPBACK, port=self.params.port)
        )
        self._directory = ""
        self._sides: tuple[Agent, Agent] | None = None
        self._stack = ExitStack()
        self._is_nobody = False

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` for a cell whose server and client run on different sides that nothing joins."""
        across = [cell for cell in cells if cls.params_of(cell.workload).side is not Side.SAME]
        require_network(across)
        for cell in across:
            params = cls.params_of(cell.workload)
            level = cell.levels[NETWORK]
            if params.side is Side.MACHINE and params.port not in list_reachable_ports(level):
                error = make_unreachable_error(level, params.port)
                raise UsageError(
                    f"{cell.id}: {error.message}", hint=f"{error.hint} (params.port, params.side)"
                )

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Raises `PlatformUnusableError` for a program that this host lacks."""
        for cell in cells:
            params: ServiceParams = cls.params_of(cell.workload)
            for words in (params.server, params.client, params.setup, params.load, params.ready):
                if words and "{" not in words[0] and shutil.which(words[0], path=_PATH) is None:
                    packages = find_program_packages(words[0])
                    hint = "install it, or give its absolute path"
                    if packages:
                        hint = make_install_hint(packages[0])
                    raise PlatformUnusableError(f"{words[0]} is not installed here", hint=hint)
        return ()

    def prepare(self, machine: Machine) -> None:
        """Starts the server and waits until it is ready. Raises `WorkloadError` if it ends or is not ready in time."""
        server, client = self._sides = self._choose_sides(machine)
        self._directory = self._make_directory(server)
        self._is_nobody = self.params.nobody and server.stat("/proc/self").uid == 0
        if self._is_nobody:
            self._run_once(server, ["chown", str(_NOBODY), self._directory], "chown", as_server=False)
        for name, text in self.params.files.items():
            (content,) = substitute([text], self._build_placeholder_values(at_server=True))
            server.write_file(f"{self._directory}/{name}", content.encode())
        if self.params.setup:
            self._run_once(
                server, self._substitute_words(self.params.setup, at_server=True), "setup", as_server=True
            )
        before = list_listening_ports(server)
        if self.params.port in before:
            raise WorkloadError(
                f"port {self.params.port} is in use where the server is to listen",
                hint="choose another one: params.port",
            )
        begun = time.monotonic()
        self._server = server.background(
            self._substitute_words(self.params.server, at_server=True),
            env=_ENVIRONMENT,
            cwd=self._directory,
            output_limit=_OUTPUT_LIMIT,
            **self._choose_user(as_server=True),
        )
        self._wait_until_ready(self._server, server, client, before)
        self._served.ready_s = time.monotonic() - begun
        self._served.other_ports = sorted(list_listening_ports(server) - before - {self.params.port})
        if self.params.load:
            self._run_once(
                client, self._substitute_words(self.params.load, at_server=False), "load", as_server=False
            )
            self._check_alive("while it was loaded")

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs the client once. Raises `WorkloadError` if client or server fails, or the server answers with errors."""
        assert self._sides is not None
        words = self._substitute_words(self.params.client, at_server=False)
        result = self._sides[1].exec(words, env=_ENVIRONMENT, cwd="/", timeout_s=self.limit_s, tail=True)
        # If the server has ended, its client can only report that nothing answers.
        self._check_alive("while its client ran")
        self._check_result(result, "the client")
        output = result.stdout.decode(errors="replace")
        self.printed = output
        if self.params.errors and (found := find_match(self.params.errors, output)):
            raise WorkloadError(
                f"the server answers with errors: {found}", hint="the figures would describe failing requests"
            )
        measured = []
        for spec in self.params.metric_specs:
            value = spec.extract_value(output, result.stderr.decode(errors="replace"))
            measured.append(Measurement(spec.metric, value, (value,)))
        return [*measured, Measurement(WALL, result.wall_s, (result.wall_s,))]

    def cleanup(self, machine: Machine) -> None:
        """Stops the server and removes its directory."""
        with self._stack:
            if self._server is not None and self._server.is_running:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    self._server.send_signal(number)
                    if self._server.wait(_STOP_S):
                        break
            if self._sides is not None and self._directory:
                self._sides[0].remove(self._directory, recursive=True)

    def _make_directory(self, server: Agent) -> str:
        """Creates the server's directory in memory.

        If the server sees this host's files, the keeper knows the directory before it exists.
        """
        with suppress(OSError):
            here = self._stack.enter_context(scratch_directory("service", _PARENT, mode=0o755))
            with suppress(CallError):
                server.stat(str(here))
                return str(here)
        there = f"{_PARENT}/guestmark-service-{secrets.token_hex(6)}"
        server.mkdir(there, mode=0o755)
        return there

    def _choose_sides(self, machine: Machine) -> tuple[Agent, Agent]:
        """Returns the agents of server and client. Raises `WorkloadError` if this needs a network and there is none."""
        if self.params.side is Side.SAME:
            return machine.agent, machine.agent
        network = find_network(machine)
        if self.params.side is Side.PEER:
            self._served.address = network.peer_address
            return network.peer, machine.agent
        self._served.address, self._served.port = network.reach_machine(self.params.port)
        return machine.agent, network.peer

    def _build_placeholder_values(self, *, at_server: bool) -> dict[str, str]:
        return {
            "address": self._listen_address if at_server else self._served.address,
            "port": str(self.params.port if at_server else self._served.port),
            "directory": self._directory,
        }

    @property
    def _listen_address(self) -> str:
        """The address at which the server listens: 0.0.0.0, or its loopback if the client runs beside it."""
        return _LOOPBACK if self.params.side is Side.SAME else _EVERYWHERE

    def _substitute_words(self, words: Sequence[str], *, at_server: bool) -> list[str]:
        return substitute(words, self._build_placeholder_values(at_server=at_server))

    def _choose_user(self, *, as_server: bool) -> dict[str, Any]:
        """Returns the user of a program: `nobody` for a server that runs as such, else the agent's own."""
        if as_server and self._is_nobody:
            return {"uid": _NOBODY, "gid": _NOBODY, "groups": ()}
        return {}

    def _run_once(self, agent: Agent, words: Sequence[str], what: str, *, as_server: bool) -> None:
        result = agent.exec(
            words,
            env=_ENVIRONMENT,
            cwd=self._directory if as_server else "/",
            timeout_s=_SETUP_S,
            tail=True,
            **self._choose_user(as_server=as_server),
        )
        self._check_result(
            result, what, f"the limit is {_SETUP_S:g} s; --trial-limit applies only to the client"
        )

    def _check_result(self, result: ExecResult, what: str, limit_hint: str = "see --trial-limit") -> None:
        if result.ok:
            return
        said = last_line(result.stderr) or last_line(result.stdout) or "it printed nothing"
        if result.timed_out:
            raise WorkloadError(f"{what} took longer than its limit: {said}", hint=limit_hint)
        how = _describe_exit(result.signal, result.status)
        raise WorkloadError(f"{what} {how}: {said}", hint=f"it ran {shlex.join(result.argv)}")

    def _wait_until_ready(self, program: Background, server: Agent, client: Agent, before: set[int]) -> None:
        deadline = time.monotonic() + parse_duration(self.params.ready_within)
        tests = self._list_readiness_tests(server, client)
        while tests:
            agent, words = tests[0]
            # A look ends by itself, with a reason; the user's command may go on for ever.
            left = max(_LOOK_S, deadline - time.monotonic())
            is_command = words == self._ready_words
            tried = agent.exec(words, env=_ENVIRONMENT, timeout_s=left if is_command else left + _STOP_S)
            self._check_alive("before it was ready")
            if time.monotonic() > deadline:
                others = sorted(list_listening_ports(server) - before - {self.params.port})
                raise WorkloadError(
                    f"the server was not ready within {self.params.ready_within}: "
                    f"{self._explain_not_ready(tried, is_command=is_command, others=others)}",
                    hint=f"it printed: {last_line(bytes(program.output)) or 'nothing'}",
                )
            if tried.ok:
                tests.pop(0)
            else:
                time.sleep(_PAUSE_S)

    @property
    def _ready_words(self) -> list[str]:
        return self._substitute_words(self.params.ready or (), at_server=False)

    def _list_readiness_tests(self, server: Agent, client: Agent) -> list[tuple[Agent, list[str]]]:
        """Returns what has to succeed in this order, and the agent that runs each."""

        def make_look_words(address: str, port: int) -> list[str]:
            return [PROGRAM, "traffic", "reach", address, str(port), str(round(_LOOK_S * 1e3))]

        tests = [(client, make_look_words(self._served.address, self._served.port))]
        if self.params.side is Side.MACHINE and self._served.address == _LOOPBACK:
            # What forwards the port on the peer's loopback accepts connections whether the server does or not.
            tests.insert(0, (server, make_look_words(_LOOPBACK, self.params.port)))
        if self.params.ready:
            tests.append((client, self._ready_words))
        return tests

    def _explain_not_ready(self, tried: ExecResult, *, is_command: bool, others: Sequence[int]) -> str:
        if tried.ok or tried.timed_out:
            said = "it took longer"
        else:
            said = last_line(tried.stderr) or last_line(tried.stdout)
            said = said.removeprefix("guestmark-agent: ") or _describe_exit(tried.signal, tried.status)
        if is_command:
            return f"{shlex.join(self._ready_words)}: {said}"
        where = f"; it listens on {', '.join(map(str, others))}" if others else ""
        return f"port {self.params.port}: {said}{where}"

    def _check_alive(self, when: str) -> None:
        assert self._server is not None
        self._server.wait(0.0)
        ended = self._server.ended
        if ended is not None:
            how = _describe_exit(ended.signal, ended.status)
            said = last_line(bytes(self._server.output)) or "nothing"
            raise WorkloadError(
                f"the server {how} {when}",
                hint=f"it printed: {said}; it must stay in the foreground",
            )


def _describe_exit(number: int | None, status: int | None) -> str:
    """Returns how a program ended: by a signal, or with an exit status."""
    return f"was killed by signal {number}" if number else f"exited with status {status}"


def last_line(output: bytes) -> str:
    """Returns the last line of an output that is not empty, made safe to print."""
    return last_inert_line(output.decode(errors="replace"))


def find_match(expression: str, text: str) -> str:
    """Returns the last line that the expression matches; empty if there is none."""
    found = regex.find_last_match(expression, (text,), regex.LIMIT_S)
    return found or ""


def list_listening_ports(agent: Agent) -> set[int]:
    """Returns the TCP ports on which anything listens in the agent's network namespace."""
    ports = set()
    for name in ("tcp", "tcp6"):
        try:
            table = agent.read_file(f"/proc/net/{name}").decode(errors="replace")
        except CallError:
            continue
        for line in table.splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == _LISTENING:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
