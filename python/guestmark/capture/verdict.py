"""What a connection's time was spent on, in words: `network 81 %, server 18 %, client 1 %`."""

from __future__ import annotations

from dataclasses import dataclass

from guestmark.capture.model import Causes

NAMES = {
    "client": "client",
    "server": "server",
    "network": "network",
    "window": "receive window closed",
    "recovery": "loss recovery",
    "idle": "idle",
}
_ALWAYS = ("client", "server", "network")


@dataclass(frozen=True, slots=True)
class Part:
    """One cause and its share of the time, 0..1."""

    cause: str
    share: float

    @property
    def name(self) -> str:
        """As it is written out."""
        return NAMES[self.cause]


def parts(causes: Causes) -> tuple[Part, ...]:
    """Every cause with its share, in the order of `NAMES`; none when the causes or the time are unknown."""
    seconds = {cause: getattr(causes, f"{cause}_s") or 0.0 for cause in NAMES}
    whole = sum(seconds.values())
    if causes.client_s is None or not whole:
        return ()
    return tuple(Part(cause, value / whole) for cause, value in seconds.items())


def percents(causes: Causes) -> tuple[tuple[str, int], ...]:
    """Causes with their percent, which add up to 100, largest first; none when they are unknown."""
    known = parts(causes)
    if not known:
        return ()
    exact = {part.cause: 100 * part.share for part in known}
    whole = {cause: int(percent) for cause, percent in exact.items()}
    for cause in sorted(exact, key=lambda cause: whole[cause] - exact[cause])[: 100 - sum(whole.values())]:
        whole[cause] += 1
    shown = [cause for cause in exact if cause in _ALWAYS or whole[cause]]
    shown.sort(key=lambda cause: -exact[cause])
    return tuple((cause, whole[cause]) for cause in shown)


def said(causes: Causes) -> str | None:
    """All causes in a sentence, largest first; None when they are unknown."""
    return ", ".join(f"{NAMES[cause]} {percent} %" for cause, percent in percents(causes)) or None


def main_part(causes: Causes) -> Part | None:
    """The cause that took most time."""
    return max(parts(causes), key=lambda part: part.share, default=None)
