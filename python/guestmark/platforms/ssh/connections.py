"""Connections to other machines, each of which serves many trials.

Each trial is a conversation with a separate agent, and nothing of it is left on the machine when the next one begins
(`crates/agent/src/trials.rs`). The queries with which a trial begins are repeated in advance for the next trial,
together with the request for the lock, so that all of them take one round trip.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.agent.results import CallError
from guestmark.core.errors import AgentError, GuestmarkError, WorkloadError
from guestmark.platforms import exclusive
from guestmark.platforms.ssh.session import Session, UnreachableError, close_session_afterwards

_PAUSE_S = 1.0
# Seconds to wait for the end of a trial on the machine before this host goes on.
_LEAVE_S = 0.05
# A kept connection is given up if it does not answer for this long; ssh notices a broken network within 15 s.
_GREETING_S = 20.0


@dataclass(slots=True)
class _Connection:
    """A session. `agent` is for the next conversation, `asked` holds the queries of each cell's last conversation."""

    session: Session
    agent: Agent
    ends: contextlib.ExitStack
    asked: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    last: str = ""

    def begin_conversation(self, cell_id: str, ours: bytes | None, deadline: float) -> None:
        """Sends the queries of the last conversation in advance, then waits for the greeting. Raises `AgentError`."""
        questions = self.asked.get(cell_id) or self.asked.get(self.last, ())
        self.agent.ask_ahead(questions, ours)
        self.agent.hello(timeout_s=max(1.0, min(_GREETING_S, deadline - time.monotonic())))

    def end_conversation(self, cell_id: str) -> None:
        """Ends the conversation. Raises `AgentError` if the connection is lost."""
        self.asked[cell_id], self.last = self.agent.questions, cell_id
        self.agent = self.agent.end_and_follow(_LEAVE_S)

    def close(self) -> None:
        """Ends the session."""
        self.agent.close()
        self.ends.close()


class Connections:
    """The connections to one machine.

    One is kept during a run; others exist only while they are in use.
    """

    def __init__(self, make: Callable[[], Session]) -> None:
        self._make = make
        self._kept: _Connection | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def hold_conversation(
        self, cell_id: str, deadline: float, ours: bytes | None, *, restarted: bool
    ) -> Iterator[tuple[Session, Agent]]:
        """Yields a session with a new agent; `deadline` is monotonic, `ours` describes this process in the lock.

        A machine that was `restarted` gets a new connection, which is retried until the machine answers.
        """
        connection = self._take_kept()
        if connection is not None and restarted:
            connection.close()
            connection = None
        if connection is not None:
            try:
                connection.begin_conversation(cell_id, ours, deadline)
            # The connection was lost meanwhile, so a new one is opened.
            except AgentError:
                connection.close()
                connection = None
        if connection is None:
            connection = _open_connection(self._make, deadline, patient=restarted)
        usable = False
        try:
            with _explain_silence(connection.session):
                yield connection.session, connection.agent
            usable = True
        except WorkloadError:
            usable = True
            raise
        finally:
            if not (usable and self._keep_open(connection, cell_id)):
                connection.close()

    def close(self) -> None:
        """Ends the kept connection."""
        if (kept := self._take_kept()) is not None:
            kept.close()

    def _take_kept(self) -> _Connection | None:
        with self._lock:
            kept, self._kept = self._kept, None
        return kept

    def _keep_open(self, connection: _Connection, cell_id: str) -> bool:
        if connection.agent.closed:
            return False
        with contextlib.suppress(GuestmarkError):
            connection.end_conversation(cell_id)
            with self._lock:
                if self._kept is None and exclusive.call_at_end(self.close):
                    self._kept = connection
                    return True
        return False


@contextlib.contextmanager
def open_once(
    make: Callable[[], Session], deadline: float, *, patient: bool
) -> Iterator[tuple[Session, Agent]]:
    """Opens a session with an agent for the context; with `patient`, waits for a machine that is starting."""
    connection = _open_connection(make, deadline, patient=patient)
    try:
        with _explain_silence(connection.session):
            yield connection.session, connection.agent
    finally:
        connection.close()


def _open_connection(make: Callable[[], Session], deadline: float, *, patient: bool) -> _Connection:
    """Opens a session and waits for its agent's greeting. With `patient`, retries while the machine does not answer."""
    with contextlib.ExitStack() as stack:
        opened, transport = _open_session(stack, make, deadline, patient=patient)
        agent = Agent(transport, own_clock=True)
        stack.callback(agent.close)
        with _explain_silence(opened):
            agent.hello(timeout_s=max(1.0, deadline - time.monotonic()))
        return _Connection(opened, agent, stack.pop_all())


def _open_session(
    stack: contextlib.ExitStack, make: Callable[[], Session], deadline: float, *, patient: bool
) -> tuple[Session, Transport]:
    begin = time.monotonic()
    while True:
        with contextlib.ExitStack() as attempt:
            opened = attempt.enter_context(close_session_afterwards(make()))
            try:
                transport = opened.open(deadline)
            except UnreachableError as error:
                if not patient:
                    raise
                if time.monotonic() + _PAUSE_S > deadline:
                    waited = f"{error.message}, {time.monotonic() - begin:.0f} s after it was made fresh"
                    raise UnreachableError(waited, hint=error.hint, console=error.console) from error
            else:
                stack.push(attempt.pop_all())
                return opened, transport
        time.sleep(_PAUSE_S)


@contextlib.contextmanager
def _explain_silence(opened: Session) -> Iterator[None]:
    """Replaces the error of an agent that stopped responding with one about its connection."""
    try:
        yield
    except CallError:
        raise
    except AgentError as error:
        raise opened.make_session_error(error) from error
