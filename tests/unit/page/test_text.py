"""Sentences that are shortened keep whole clauses."""

import pytest

from guestmark.page.text import keep_clauses

REASONS = (
    "the guest ended while starting, after 0.3 s: qemu-system-x86_64: error: failed to set MSR 0x10a to 0x69",
    "firecracker is not installed, and this distribution has no package for it",
    "still unknown after 25 s",
    "one-word-that-has-no-end-at-which-it-could-stop",
)


@pytest.mark.parametrize("width", range(5, 120, 7))
@pytest.mark.parametrize("reason", REASONS)
def test_no_clause_is_cut(reason: str, width: int) -> None:
    shown = keep_clauses(reason, width)
    assert reason.startswith(shown)
    if shown != reason:
        assert len(shown) <= width
        assert reason[len(shown) :].startswith((": ", "; ", ", ", " ("))
