"""Coordinates a fleet: keeps workers connected and supplies the engine with blocks until every run has ended.

It decides nothing about trials. Each machine's run is in the ledger, where it is begun, claimed and stopped like any
other; the coordinator may be killed at any moment and started again, here or on another host.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.context import FleetOrder
from guestmark.core.errors import ExitStatus, Interrupted
from guestmark.core.keeper import keeper
from guestmark.core.model import RunState
from guestmark.engine.interrupt import Interruption
from guestmark.fleet.block_task import count_progress, find_run, read_progress, run_block
from guestmark.fleet.lab import LabMachine
from guestmark.fleet.order import MachineProgress
from guestmark.fleet.parsl_engine import EngineError, ParslEngine, find_lost_worker
from guestmark.fleet.worker_connection import LinkEnd, WorkerAddresses, WorkerLink
from guestmark.ledger.attempts import find_pending_runs, record_lost_attempts
from guestmark.ledger.model import StoredRun
from guestmark.ledger.postgres import PATIENCE_S
from guestmark.ledger.store import Ledger

TICK_S = 0.5
# The number of blocks submitted for each machine, so that no machine waits for its next block.
_QUEUED = 2
_ENDED = frozenset({RunState.COMPLETE.value, RunState.STOPPED.value, RunState.FAILED.value})
# A machine is given up after this many consecutive connections that end before a block is done.
_MOST_LINKS = 8
# The fleet ends after this many attempts to start an engine.
_MOST_ENGINES = 5
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
# Claims of workers that have ended are released after this time.
_LETTING_GO_S = 4.0
# A machine is given up after reporting only errors for this time, unless the ledger cannot be reached.
_TROUBLE_S = 180.0


@dataclass(slots=True)
class MachineState:
    """The state of one machine of the fleet."""

    member: LabMachine
    progress: MachineProgress
    link: WorkerLink | None = None
    # The number of connections opened so far, which is part of the worker's name.
    links: int = 0
    # Whether a result has come from the machine since the coordinator started.
    answered: bool = False
    # The number of consecutive connections that ended by themselves.
    failures: int = 0
    next_link: float = 0.0
    trouble_since: float | None = None
    # Why the machine was given up; empty if it was not.
    gave_up: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether the machine's run has ended."""
        return self.progress.state in _ENDED

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to do on the machine."""
        return self.has_ended or bool(self.gave_up)


class Fleet:
    """A running fleet. `tell` is called with messages for the user, `look` twice a second.

    `block` is the function that the engine runs, and `link` starts a machine's worker; simulations replace both.
    """

    def __init__(
        self,
        order: FleetOrder,
        lab: Sequence[LabMachine],
        ledger: Ledger,
        ledger_url: str,
        *,
        tell: Callable[[str], None],
        look: Callable[[Fleet], None] = lambda _: None,
        block: Callable[[bytes], bytes] = run_block,
        link: Callable[[LabMachine, WorkerAddresses, dict[str, str], list[str]], WorkerLink] = WorkerLink,
    ) -> None:
        self._order = msgspec.json.encode(order)
        self._wanted = order
        self._ledger = ledger
        self._url = ledger_url
        self._tell = tell
        self._look = look
        self._block = block
        self._link = link
        self._engine: ParslEngine | None = None
        self._pending: set[Future[bytes]] = set()
        loaded: dict[str, StoredRun] = {}
        self.states: dict[str, MachineState] = {}
        for member in lab:
            self.states[member.name] = MachineState(member, self._read_progress(member.name, loaded))
        self.begun = time.monotonic()

    def run(self) -> None:
        """Run until every machine's run has ended or was given up. All workers are stopped, however this ends."""
        directory = keeper().directory("fleet", choose_scratch_parent())
        try:
            while not all(state.is_over for state in self.states.values()):
                if self._engine is None or not self._engine.is_running():
                    self._engine = self._start_engine(directory)
                self._open_links(self._engine)
                self._submit_blocks(self._engine)
                done, self._pending = concurrent.futures.wait(
                    self._pending, timeout=TICK_S, return_when=FIRST_COMPLETED
                )
                for future in done:
                    self._handle_result(future)
                self._look(self)
        finally:
            self._close_links(list(self.states.values()))
            if self._engine is not None:
                self._engine.close()
            keeper().remove(directory)
            self._record_lost_trials()

    @property
    def status(self) -> ExitStatus:
        """The exit status for the results of all machines."""
        good = 0
        for state in self.states.values():
            good += state.progress.trials - state.progress.failed - state.progress.lost
        if not good:
            return ExitStatus.NOTHING_MEASURED
        for state in self.states.values():
            # Lost trials do not count, because a run ends only after other blocks have replaced them.
            if not state.has_ended or state.progress.failed or state.progress.left_out:
                return ExitStatus.SOME_FAILED
        return ExitStatus.ALL_MEASURED

    def _start_engine(self, directory: Path) -> ParslEngine:
        if self._engine is not None:
            self._tell("the engine ended unexpectedly; restarting it")
            self._close_links(list(self.states.values()))
            with contextlib.suppress(Exception):
                self._engine.close()
            self._engine = None
        self._pending = set()
        for _ in range(_MOST_ENGINES - 1):
            try:
                return ParslEngine(_make_private_directory(directory))
            except EngineError as error:
                self._tell(f"{error.message}; restarting it")
                time.sleep(_PAUSE_S)
        return ParslEngine(_make_private_directory(directory))

    def _open_links(self, engine: ParslEngine) -> None:
        """Open missing connections, and check the open ones."""
        now = time.monotonic()
        for state in self.states.values():
            if state.is_over:
                if state.link is not None:
                    self._close_links([state])
                continue
            if state.link is not None:
                self._serve_link(state, state.link, engine)
            if state.is_over:
                continue
            if state.link is None and now >= state.next_link:
                state.links += 1
                worker = f"{state.member.name}.{state.links}"
                reach = WorkerAddresses(engine.port, self._url)
                state.link = self._link(
                    state.member, reach, engine.read_worker_keys(), engine.make_worker_arguments(worker)
                )

    def _serve_link(self, state: MachineState, link: WorkerLink, engine: ParslEngine) -> None:
        """Forward a worker's messages to the user; close its connection if it has ended or the worker is silent."""
        name = state.member.name
        for text in link.take_messages():
            self._tell(f"{name}: {text}")
        silent = link.is_silent(engine.present)
        if link.is_running() and not silent:
            return
        said = LinkEnd("it has stopped responding") if silent else link.describe_end()
        link.close()
        state.link = None
        state.failures += 1
        if (said.final and not state.answered) or state.failures >= _MOST_LINKS:
            self._give_up(state, said.text or "its worker keeps ending")
            return
        pause = min(_PAUSE_S * 2 ** (state.failures - 1), _LONGEST_PAUSE_S)
        state.next_link = time.monotonic() + pause
        message = f"{name}: its worker has ended"
        if said.text:
            message += f": {said.text}"
        self._tell(message)

    def _submit_blocks(self, engine: ParslEngine) -> None:
        wanted = _QUEUED * sum(not state.is_over for state in self.states.values())
        for _ in range(wanted - len(self._pending)):
            self._pending.add(engine.submit_block(self._block, self._order))

    def _handle_result(self, future: Future[bytes]) -> None:
        error = future.exception()
        if error is not None:
            self._handle_lost_worker(error)
            return
        done = msgspec.json.decode(future.result(), type=MachineProgress)
        state = self.states.get(done.machine)
        if state is None:
            return
        state.failures, state.answered = 0, True
        if not done.error:
            state.progress, state.trouble_since = done, None
            if state.has_ended:
                self._close_links([state, *self._end_shared_machines(done)])
            return
        first = state.trouble_since is None
        state.trouble_since = state.trouble_since or time.monotonic()
        if first:
            message = f"{done.machine}: {done.error}"
            if done.hint:
                message += f"\n  {done.hint}"
            self._tell(message)
        patience_s = _TROUBLE_S
        if done.ledger:
            patience_s += PATIENCE_S
        if done.final or time.monotonic() - state.trouble_since > patience_s:
            self._give_up(state, done.error)

    def _end_shared_machines(self, done: MachineProgress) -> list[MachineState]:
        """Mark the other machines that share the ended run as ended, without waiting for their reports; return them."""
        others = []
        for state in self.states.values():
            if not state.is_over and state.progress.run == done.run:
                state.progress = count_progress(self._ledger, done.run, state.member.name, shared=True)
                others.append(state)
        return others

    def _handle_lost_worker(self, error: BaseException) -> None:
        """Handle a machine that the engine has given up, or a worker process that has ended."""
        worker = find_lost_worker(error)
        name, _, number = worker.rpartition(".")
        state = self.states.get(name)
        if state is None:
            self._tell("a worker was killed; its trial is lost")
            return
        if number == str(state.links) and state.link is not None:
            self._tell(f"{name}: it has stopped responding")
            self._close_links([state])
            state.link = None

    def _give_up(self, state: MachineState, why: str) -> None:
        state.gave_up = why
        self._tell(f"gave up on {state.member.name}: {why}; the other machines continue")
        self._close_links([state])

    @staticmethod
    def _close_links(states: Sequence[MachineState]) -> None:
        links = [state.link for state in states if state.link is not None]
        for state in states:
            state.link = None
        if links:
            with ThreadPoolExecutor(min(len(links), 32)) as pool:
                list(pool.map(lambda link: link.close(), links))

    def _record_lost_trials(self) -> None:
        """Record trials that were begun as lost, because no worker executes their runs any more."""
        theirs = []
        for state in self.states.values():
            if not state.has_ended:
                run_id = state.progress.run or find_run(self._ledger, self._wanted, state.member.name)
                if run_id:
                    theirs.append((state, run_id))
        running = {run_id for _, run_id in theirs}
        deadline = time.monotonic() + _LETTING_GO_S
        for run_id in find_pending_runs(self._ledger, running):
            while self._ledger.is_claimed(run_id) and time.monotonic() < deadline:
                time.sleep(0.1)
            if not self._ledger.is_claimed(run_id):
                record_lost_attempts(self._ledger, run_id, "the fleet was stopped in the middle of the trial")
        for state, run_id in theirs:
            state.progress = read_progress(self._ledger.load_run(run_id), state.member.name)

    def _read_progress(self, name: str, loaded: dict[str, StoredRun]) -> MachineProgress:
        """Return the progress of the machine's run; `loaded` caches the runs that have been read."""
        run_id = find_run(self._ledger, self._wanted, name)
        if run_id is None:
            return MachineProgress(name)
        if run_id not in loaded:
            loaded[run_id] = self._ledger.load_run(run_id)
        return read_progress(loaded[run_id], name)


def _make_private_directory(parent: Path) -> Path:
    own = parent / f"engine-{time.monotonic_ns()}"
    own.mkdir(mode=0o700)
    return own


def run_fleet(fleet: Fleet) -> bool:
    """Run the fleet until it is done or a signal stops it; return whether it was stopped.

    A second signal terminates this process.
    """
    interruption = Interruption()
    with interruption.handle_signals():
        try:
            with interruption.interruptible():
                fleet.run()
        except Interrupted:
            return True
    return False
