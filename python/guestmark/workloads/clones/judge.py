"""Judges from the values of machines whether they are independent of each other: pure functions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from guestmark.core.units import format_count
from guestmark.workloads.clones import Control, Found, Verdict, Word
from guestmark.workloads.clones.sources import Kind, Source

CONFIDENCE = 0.95
# If the probability that values are equal by chance exceeds this, equal values prove nothing.
_NO_CHANCE = 1e-6
_CLOCK_S, _CLOCK = 0.1, "the clock"
_SHOW_DATE = "date +%s.%N"
_DRIFT = 0.05
_RATE_S = 0.05
_ADDRESS_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ShownValues:
    """The values that one machine printed for a source; if there are none, `why` is the reason."""

    values: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class ComparedClock:
    """One machine's clock compared with this host's, in seconds.

    `off` is the error of its date, ± `uncertain`. While all values were read, this host's clock advanced by `looked`,
    and the machine's clock by `drift` more.
    """

    off: float
    uncertain: float
    drift: float
    looked: float


def compute_smallest_visible_share(machines: int) -> float:
    """Returns the smallest share of twins that this many machines reveal with a probability of 95 %.

    Twins are seen when two of the n machines are twins. If each machine is one with probability q, independently, at
    most one of n is with probability (1-q)^n + n q (1-q)^(n-1). This falls in q, and the share is where it reaches 5 %.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        missed = (1 - share) ** machines + machines * share * (1 - share) ** (machines - 1)
        if missed > 1 - CONFIDENCE:
            low = share
        else:
            high = share
    return high


def judge_source(
    source: Source,
    shown: Sequence[ShownValues],
    here: ShownValues | None = None,
    *,
    own_kernel: bool = False,
    host: str = "this host",
) -> Found:
    """Judges the values that machines printed for a source.

    `here` is the own value of `host`, which machines may share with it without being twins. It is ignored for values of
    a kernel if machines have their own (`own_kernel`): its address may be the host's because neither is random.
    """
    if own_kernel and source.of_kernel:
        here = None
    silent = [each for each in shown if not each.values]
    if silent:
        return _make_finding(source, Word.UNTRIED, _describe_silence(source, silent, len(shown)))
    if source.kind is Kind.SECRET and (repeated := _describe_repeats(shown)):
        return _make_finding(source, Word.IDENTICAL, repeated)
    sharing = count_largest_group(shown)
    if sharing == 1:
        return _judge_unshared(source, shown)
    of_host = here is not None and _has_values_of_host(shown, here)
    said = f"{sharing} of {len(shown)} machines: {_abbreviate_value(_find_most_common_value(shown))}"
    if of_host:
        said += f", as on {host}"
    # Only a few bits of an address are random. If all machines have the same address, no bits differ, and the
    # machines are twins.
    if source.kind is Kind.LAYOUT and sharing < len(shown) and _compute_chance_of_twins(shown) > _NO_CHANCE:
        bits = _count_differing_bits(shown)
        few = f"all these addresses differ in only {format_count(bits, 'bit')}"
        return _make_finding(source, Word.CHANCE, f"{said}, which may be chance: {few}")
    return _make_finding(source, Word.IDENTICAL, said, of_host=of_host)


def _make_finding(source: Source, word: Word, said: str, *, of_host: bool = False) -> Found:
    return Found(
        source=source.name,
        word=word,
        said=said,
        command=source.shell_command,
        of_host=of_host,
        decides=source.decides_twins,
    )


def _describe_silence(source: Source, silent: Sequence[ShownValues], machines: int) -> str:
    some = f" in {len(silent)} of {machines} machines" if len(silent) < machines else ""
    return f"{silent[0].why or source.absent or 'it printed nothing'}{some}"


def _find_most_common_value(shown: Sequence[ShownValues]) -> str:
    machines = Counter[str]()
    for each in shown:
        machines.update(set(each.values))
    return machines.most_common(1)[0][0]


def _describe_repeats(shown: Sequence[ShownValues]) -> str:
    """Returns a sentence about machines that printed a secret more than once; empty if none did."""
    repeats = [each for each in shown if len(set(each.values)) < len(each.values)]
    if not repeats:
        return ""
    value = Counter(repeats[0].values).most_common(1)[0][0]
    return f"{format_count(len(repeats), 'machine')} printed {_abbreviate_value(value)} more than once"


def _judge_unshared(source: Source, shown: Sequence[ShownValues]) -> Found:
    """Judges values that no two machines have in common."""
    bits = ""
    if source.kind is Kind.LAYOUT:
        bits = f" of {_count_differing_bits(shown)} bits"
        # Where so few bits differ, different addresses do not prove that the machines share no state.
        if _compute_chance_of_twins(shown) > 0.5:
            return _make_finding(source, Word.CHANCE, f"{len(shown)} different addresses{bits}")
    number = sum(len(each.values) for each in shown)
    return _make_finding(source, Word.DISTINCT, f"{format_count(number, 'value')}{bits}, all different")


def _has_values_of_host(shown: Sequence[ShownValues], here: ShownValues) -> bool:
    return bool(here.values) and all(set(each.values) & set(here.values) for each in shown)


def count_largest_group(shown: Sequence[ShownValues]) -> int:
    """Returns the size of the largest group of twins: machines with a value in common, directly or through others."""
    group = list(range(len(shown)))
    for first, second in itertools.combinations(range(len(shown)), 2):
        if group[first] != group[second] and set(shown[first].values) & set(shown[second].values):
            old, new = group[second], group[first]
            for machine, twins in enumerate(group):
                if twins == old:
                    group[machine] = new
    return max(Counter(group).values(), default=0)


def _count_differing_bits(shown: Sequence[ShownValues]) -> int:
    """Returns how many bits differ between the machines' first values, which are addresses."""
    addresses = [int(each.values[0], 16) for each in shown]
    differing = 0
    for address in addresses:
        differing |= address ^ addresses[0]
    return (differing & _ADDRESS_BITS).bit_count()


def _compute_chance_of_twins(shown: Sequence[ShownValues]) -> float:
    """Returns a bound on the probability that any two values are equal by chance, if the differing bits are random."""
    return min(1.0, math.comb(len(shown), 2) / 2.0 ** _count_differing_bits(shown))


def judge_clocks(clocks: Sequence[ComparedClock]) -> Found:
    """Judges whether the machines know the time, and whether their clocks ran evenly while values were read."""
    if not clocks:
        return Found(
            source=_CLOCK,
            word=Word.UNTRIED,
            said="no machine's date has fractions of a second",
            command=_SHOW_DATE,
        )
    off = [max(0.0, abs(clock.off) - clock.uncertain) for clock in clocks]
    uneven = [clock for clock in clocks if abs(clock.drift) > _DRIFT * clock.looked + _RATE_S]
    worst = max(clocks, key=lambda clock: abs(clock.off) - clock.uncertain)
    said = f"off by at most {max(abs(clock.off) for clock in clocks):.3f} s, ± {worst.uncertain:.3f} s"
    word = Word.RIGHT
    if wrong := sum(each > _CLOCK_S for each in off):
        word, said = Word.WRONG, f"{wrong} of {len(clocks)} are off by up to {abs(worst.off):.2f} s"
    elif uneven:
        word, said = (
            Word.WRONG,
            f"{len(uneven)} of {len(clocks)} ran unevenly, by {uneven[0].drift:+.2f} s",
        )
    return Found(source=_CLOCK, word=word, said=said, command=_SHOW_DATE)


def choose_verdict(found: Sequence[Found], controls: Sequence[Control]) -> Verdict:
    """Returns the verdict: machines are twins if they share values that are not this host's.

    Nothing is proven if a control was missed, or if too few sources could be tried.
    """
    deciding = [each for each in found if each.decides]
    if any(each.word is Word.IDENTICAL and not each.of_host for each in deciding):
        return Verdict.TWINS
    if any(each.word is Word.WRONG for each in deciding):
        return Verdict.STALE
    tried = any(each.word is Word.DISTINCT for each in deciding)
    caught = bool(controls) and all(control.caught for control in controls)
    return Verdict.STRANGERS if tried and caught else Verdict.UNPROVEN


def _abbreviate_value(value: str) -> str:
    return value if len(value) <= 36 else f"{value[:32]}…"
