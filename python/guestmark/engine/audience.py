"""The user who follows a run, and what they are told while guestmark waits for machines and checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

from guestmark.core.model import Cell, LeftOut, Plan
from guestmark.core.parallel import report_interrupt
from guestmark.core.reminder import Reminder
from guestmark.core.units import format_duration
from guestmark.engine.judgement import Judgement
from guestmark.engine.progress import Observer, SilentObserver
from guestmark.foreign.parts import SILENT
from guestmark.foreign.progress import Progress
from guestmark.platforms import exclusive
from guestmark.platforms.base import Platform, Unusable, Usable
from guestmark.platforms.probe import Startable, probe_all
from guestmark.setting.network import NETWORK, Network

_REMIND_EVERY_S = 30.0
# A check of platforms that takes longer than this is mentioned.
_MENTION_AFTER_S = 0.5


def _ignore_message(_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Audience:
    """Callbacks that report a run's progress. The default is silent.

    `tell` gets what a user must know, such as what is left out, `mention` what only explains a wait, and `progress`
    what is built before the run. `observe` opens an observer for the duration of the measurements. `present` gets the
    judgement once they have ended. With `tells_notes=False`, `tell` gets nothing that the run stores: neither its notes
    nor what is left out.
    """

    tell: Callable[[str], None] = _ignore_message
    mention: Callable[[str], None] = _ignore_message
    progress: Progress = SILENT
    observe: Callable[[], AbstractContextManager[Observer]] = lambda: nullcontext(SilentObserver())
    present: Callable[[Judgement], None] = _ignore_message
    tells_notes: bool = True

    def tell_left_out(self, left_out: Sequence[LeftOut]) -> None:
        """Report what cannot be measured here, and what would help; nothing without `tells_notes`."""
        if not self.tells_notes:
            return
        for entry in left_out:
            message = f"{entry.name} cannot be used here and is left out: {entry.reason}"
            if entry.hint:
                message += f"\n  {entry.hint}"
            self.tell(message)

    def tell_notes(self, notes: Sequence[str]) -> None:
        """Report the notes of a run; nothing without `tells_notes`."""
        if not self.tells_notes:
            return
        for note in notes:
            self.tell(note)


@contextmanager
def hold_machines(
    plan: Plan, tell: Callable[[str], None], *, wait: bool = True, name: str = ""
) -> Iterator[None]:
    """Wait until the machines that the plan uses are free, and keep other guestmark processes off them.

    `tell` gets the name of the process that has them; others that wait see `name`, or the plan's. With `wait=False`,
    raises `InUseError` instead.
    """
    here = any(_uses_this_host(cell) for cell in plan.cells)
    with exclusive.lock_machines(exclusive.LockPolicy(name or plan.name, wait=wait, tell=tell), here=here):
        yield


def _uses_this_host(cell: Cell) -> bool:
    """Return whether a machine of the cell is on this host, or connects to a peer that is."""
    return cell.platform.uses_this_host or cell.levels[NETWORK] is not Network.NONE


def make_prober(
    audience: Audience, deadline_s: float | None = None
) -> Callable[[list[Platform]], Mapping[str, Usable | Unusable]]:
    """Return `probe_all` with messages to this audience about checks that take a while."""

    def probe(platforms: list[Platform]) -> Mapping[str, Usable | Unusable]:
        # If cells ask for files of their own, the state of these follows the platform's name: results are
        # stored under both, but it is not worth showing.
        names = ", ".join(dict.fromkeys(platform.name.partition(" ")[0] for platform in platforms))

        def mention(elapsed_s: float) -> None:
            message = f"checking whether {names} can be used here …"
            if elapsed_s >= _REMIND_EVERY_S:
                message += f" {format_duration(elapsed_s)} so far"
            audience.mention(message)

        with (
            Reminder(mention, first_s=_MENTION_AFTER_S, every_s=_REMIND_EVERY_S),
            report_interrupt(audience.tell),
        ):
            return probe_all(cast("list[Startable]", platforms), deadline_s=deadline_s)

    return probe
