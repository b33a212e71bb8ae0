"""Simulates sentences other than verdicts: values with ±, gates, sessions, machines, laws, quantiles.

Each row is (what is printed, where, how often it is false, how often it is found or shown). Sentences about whole runs
are simulated by whole runs, because their stopping rule makes a sentence false more often than its level says.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from shipped import CASES, METRICS, Case, one_run

from guestmark.core.gate import Gate
from guestmark.stats import paired
from guestmark.stats.across_runs import (
    ChangeVerdict,
    PastRatio,
    compare_two_sides,
    compute_detectable_over_sessions,
    estimate_single_session_error,
    mean_over_sessions,
)
from guestmark.stats.effects import estimate_effects
from guestmark.stats.gates import JudgedGate, Outcome, find_smallest_detected_ratio, judge_gates
from guestmark.stats.machines import detect_machine_drift, pool_machines
from guestmark.stats.quantiles import estimate_quantile
from guestmark.stats.scalability import Law, fit_with_intervals

Array = np.ndarray
Row = tuple[str, str, float | None, float | None]
WALL = METRICS[0].name
LIMIT = 1.05
GATE = Gate("> +5%", (), "", LIMIT, above=True)
LASTING = ("iid", "AR .5", "AR .8", "drift")
GATED = (
    "guest: iid",
    "guest: AR .8",
    "guest: unequal variance",
    "guest: carry-over",
    "timed pair, 100 ms: iid",
    "timed pair, 100 ms: AR .8",
    "timed pair, 100 ms: carry-over",
    "quick pair: iid",
)


def sentence_rows(sims: int) -> Iterator[Row]:
    """Yield all rows: `sims` whole runs for each figure, ten times as many where no run is needed."""
    yield from check_values(sims)
    yield from check_gates(sims)
    yield from beside_a_loop(sims)
    yield from check_sessions(10 * sims)
    yield from check_machines(3 * sims)
    yield from check_laws(3 * sims)
    yield from check_quantiles(3 * sims)
    yield from check_forecasts(10 * sims)
    yield from check_factors(3 * sims)


def check_values(sims: int) -> Iterator[Row]:
    """Check ± beside a cell's value and the interval of its mean: how often they miss the simulated truth."""
    for place in ("guest", "host, 100 ms", "timed pair, 100 ms"):
        for name in LASTING:
            case = CASES.get(f"{place}: {name}")
            if case is None:
                continue
            missed = np.zeros(2)
            for number in range(sims):
                analysis, _ = one_run(case, np.random.default_rng((11, number)))
                found = analysis.cells[-1].summary[WALL]
                drifted = 0.1 * (analysis.trials - 1) / 2 / 120 if name == "drift" else 0.0
                truth = case.iteration_s * math.exp(drifted)
                for place_of, ends in enumerate((found.typical_ci, found.ci)):
                    missed[place_of] += ends is not None and not ends[0] <= truth <= ends[1]
            yield f"± of a typical run, {case.name}", "typical", missed[0] / sims, None
            yield f"± of a typical run, {case.name}", "mean", missed[1] / sims, None


def check_gates(sims: int) -> Iterator[Row]:
    """Check gates with the limit at the true ratio, where either outcome is wrong, and at the ratio to be found."""
    for name in GATED:
        at_limit = replace(CASES[name], effect=math.log(LIMIT))
        outcomes = [_judged(at_limit, (12, number)).outcome for number in range(sims)]
        hits, told = 0, 0
        for number in range(sims // 2):
            size = _judged(CASES[name], (13, number)).finds
            if size is not None:
                told += 1
                larger = replace(CASES[name], effect=math.log(size))
                hits += _judged(larger, (14, number)).outcome is Outcome.BROKEN
        broken = outcomes.count(Outcome.BROKEN) / sims
        yield f"a gate is broken, {name}", "at the limit", broken, hits / told if told else None
        yield f"a gate is kept, {name}", "at the limit", outcomes.count(Outcome.KEPT) / sims, None


def beside_a_loop(sims: int) -> Iterator[Row]:
    """Check a gate on a command that sometimes waits for a processor and is 3 % slower, twice the limit.

    At first wall time decides alone; then the load is known, so that user time may decide, too. At the limit both
    outcomes are wrong.
    """
    half = replace(GATE, text="> +1.5%", limit=1.015)
    for name in ("spikes", "switching in blocks"):
        for share, said in ((0.0, name), (0.4, f"{name}, load known")):
            case = replace(CASES[f"timed pair, 100 ms: {name}"], beside=share)
            shares = []
            for effect in (0.0, math.log(half.limit), math.log(1.03)):
                outcomes = [_judged(replace(case, effect=effect), (21, n), half).outcome for n in range(sims)]
                shares.append(outcomes.count(Outcome.BROKEN) / sims)
            kept = outcomes.count(Outcome.KEPT) / sims
            yield "a gate of +1.5 % is broken", f"equal, {said}", shares[0], shares[2]
            yield "a gate of +1.5 % is broken", f"at the limit, {said}", shares[1], None
            yield "a gate of +1.5 % is kept", f"+3 %, {said}", kept, None


def _judged(case: Case, seed: tuple[int, int], gate: Gate = GATE) -> JudgedGate:
    analysis, _ = one_run(case, np.random.default_rng(seed))
    return judge_gates([gate], analysis)[-1]


def check_sessions(sims: int) -> Iterator[Row]:
    """Check sentences about sessions that differ by 2 %: gates, two sides, and forecasts from earlier sessions."""
    generator = np.random.default_rng(15)
    for number in (3, 5, 10):
        wrong = found = several = 0
        for _ in range(sims):
            ratios = LIMIT * np.exp(generator.normal(0, 0.02, number))
            ends = mean_over_sessions(ratios.tolist()).ci
            assert ends is not None
            wrong += ends[0] > LIMIT
            error = math.log(ends[1] / ends[0]) / 2 / paired.t_quantile(number - 1, 0.975)
            size = find_smallest_detected_ratio(GATE, error, number - 1, 0.025)
            again = mean_over_sessions(
                (LIMIT * np.exp(_away(size) + generator.normal(0, 0.02, number))).tolist()
            ).ci
            assert again is not None
            found += again[0] > LIMIT
            sides = compare_two_sides(*np.exp(generator.normal(0, 0.02, (2, number))).tolist())
            several += sides.verdict in {ChangeVerdict.HIGHER, ChangeVerdict.LOWER}
        yield f"a gate over {number} sessions is broken", "at the limit", wrong / sims, found / sims
        yield f"two sides of {number} sessions differ", "equal sides", several / sims, None
    for earlier in (4, 6, 10):
        missed, hits = 0, dict.fromkeys((3, 5, 10), 0)
        for _ in range(sims):
            known = [_past(value) for value in generator.normal(0, 0.02, earlier)]
            errs = estimate_single_session_error(known)
            assert errs is not None
            missed += abs(math.expm1(generator.normal(0, 0.02))) > errs
            for number in hits:
                away = compute_detectable_over_sessions(known, number)
                ends = mean_over_sessions(
                    (LIMIT * np.exp(away + generator.normal(0, 0.02, number))).tolist()
                ).ci
                hits[number] += ends is not None and ends[0] > LIMIT
        yield f"how far one session lies, {earlier} earlier", "", missed / sims, None
        for number, hit in hits.items():
            yield f"what {number} sessions would find, {earlier} earlier", "", None, hit / sims


def _away(size: float | None) -> float:
    return math.log((size or 10 * LIMIT) / LIMIT)


def _past(log: float, low: float = -0.01, high: float = 0.01, blocks: int = 10) -> PastRatio:
    return PastRatio("", 0.0, math.exp(log), math.exp(log + low), math.exp(log + high), blocks)


def check_machines(sims: int) -> Iterator[Row]:
    """Check sentences about equal machines of a class: their ratio, an outlier, values that move over the blocks."""
    generator = np.random.default_rng(16)
    for number in (3, 5, 10):
        for between in (0.0, 0.01, 0.05):
            missed = further = apart = 0
            for _ in range(sims):
                own = generator.normal(0, between, number + 1)
                known = {str(at): _measured(generator, own[at]) for at in range(number)}
                found = pool_machines(known)
                assert found is not None
                missed += not found.ci[0] <= 1 <= found.ci[1]
                new = _measured(generator, own[-1]).ratio
                further += not found.prediction[0] <= new <= found.prediction[1]
                apart += bool(found.different)
            where = f"{number} machines that differ by {between:.0%}"
            yield "a class's ratio", where, missed / sims, None
            yield "where a further machine's ratio is", where, further / sims, None
            yield "a machine differs from its class", where, apart / sims, None
    for rho in (0.0, 0.5, 0.8):
        moved = 0
        for _ in range(sims):
            host = _lasting(generator, (10, 12), rho)
            moved += any(
                detect_machine_drift(np.exp(blocks + generator.normal(0, 0.005, blocks.size)).tolist(), 40)
                is not None
                for blocks in host
                for _ in range(4)
            )
        yield "a value moved over the blocks", f"10 machines, 4 cells, AR {rho:g}", moved / sims, None


def _measured(generator: np.random.Generator, log: float, blocks: int = 8) -> PastRatio:
    walsh = paired.walsh_averages(generator.normal(log, 0.02, blocks))
    low, high = paired.signed_rank_interval(walsh)
    middle = float(paired.hodges_lehmann(walsh))
    return _past(middle, float(low) - middle, float(high) - middle, blocks)


def _lasting(generator: np.random.Generator, shape: tuple[int, int], rho: float) -> Array:
    noise = generator.normal(0, 0.02, shape)
    for at in range(1, shape[1]):
        noise[:, at] = rho * noise[:, at - 1] + math.sqrt(1 - rho**2) * noise[:, at]
    return noise


def check_laws(sims: int) -> Iterator[Row]:
    """Check the Universal Scalability Law with 1, 2, 4 and 8 machines, 3 % of noise each and 2 % per block."""
    generator = np.random.default_rng(17)
    for contention, coherence in ((0.3, 0.0), (0.1, 0.01), (0.05, 0.002)):
        law = Law(10.0, contention, coherence, 0.0)
        for blocks in (4, 8):
            missed, more = np.zeros(3), 0
            for _ in range(sims):
                found = fit_with_intervals([
                    [
                        (n, law.predict_throughput(n) * math.exp(level + generator.normal(0, 0.03)))
                        for n in (1.0, 2.0, 4.0, 8.0)
                    ]
                    for level in generator.normal(0, 0.02, blocks)
                ])  # fmt: skip
                truth = (contention, coherence, law.knee)
                held = (found.contention, found.coherence, found.knee)
                for at, (ends, true) in enumerate(zip(held, truth, strict=True)):
                    assert ends is not None
                    missed[at] += not ends[0] <= true <= ends[1]
                more += found.knee is not None and found.knee[0] > 8
            where = f"{blocks} blocks, contention {contention:g}, coherence {coherence:g}"
            yield "intervals of a scalability law", where, float(missed.max()) / sims, None
            if law.knee > 8:
                yield "more machines would do more", where, None, more / sims
        if math.isfinite(law.knee):  # there is a number of machines beyond which more do less
            yield from _at_the_knee(generator, law, sims)


def _at_the_knee(generator: np.random.Generator, law: Law, sims: int) -> Iterator[Row]:
    numbers = [float(number) for number in (1, 2, round(law.knee / 2), math.ceil(law.knee))]
    said = 0
    for _ in range(sims):
        found = fit_with_intervals([
            [(n, law.predict_throughput(n) * math.exp(generator.normal(0, 0.03))) for n in numbers] for _ in range(6)
        ])  # fmt: skip
        said += found.knee is not None and found.knee[0] > numbers[-1]
    yield "more machines would do more", f"{numbers[-1]:.0f} do most, 6 blocks", said / sims, None


def check_quantiles(sims: int) -> Iterator[Row]:
    """Check quantiles of starts whose blocks differ by the given share of the variance."""
    generator = np.random.default_rng(18)
    for blocks, starts in ((3, 100), (6, 40), (10, 40)):
        for share in (0.5, 0.9):
            for between in (0.0, 0.3):
                true = NormalDist().inv_cdf(share)
                shown = missed = 0
                for _ in range(sims):
                    level = math.sqrt(between) * generator.normal(size=(blocks, 1))
                    values = level + math.sqrt(1 - between) * generator.normal(size=(blocks, starts))
                    ends = estimate_quantile(values.tolist(), share).interval
                    shown += ends is not None
                    missed += ends is not None and not ends[0] <= true <= ends[1]
                where = (
                    f"p{share * 100:.0f}, {blocks} blocks of {starts} starts, {between:.0%} between blocks"
                )
                yield "a quantile's interval", where, missed / sims, shown / sims


def check_forecasts(sims: int) -> Iterator[Row]:
    """Check the forecast of twice as many blocks: false if it is off by more than a factor of 1.5."""
    generator = np.random.default_rng(19)
    for name, draw in (
        ("normal", lambda n: generator.normal(0, 0.02, n)),
        ("t, 3", lambda n: 0.02 * generator.standard_t(3, n)),
    ):
        off = 0
        for _ in range(sims):
            d = draw(20)
            first, all_ = _half(d[:10]), _half(d)
            told = first * _width(20) / _width(10)
            off += not told / 1.5 <= all_ <= told * 1.5
        yield "what more blocks would give", f"10 blocks, 10 more, {name}", off / sims, None


def _half(d: Array) -> float:
    low, high = paired.signed_rank_interval(paired.walsh_averages(d))
    return float(high - low) / 2


def _width(blocks: int) -> float:
    return paired.t_quantile(blocks - 1, 0.975) / math.sqrt(blocks)


def check_factors(sims: int) -> Iterator[Row]:
    """Check the effects of a matrix of 2 x 3 equal cells: any marked effect is false."""
    generator = np.random.default_rng(20)
    for rho in (0.0, 0.8):
        marked = 0
        for _ in range(sims):
            host = _lasting(generator, (1, 60), rho)[0].reshape(10, 6)
            order = generator.permuted(np.broadcast_to(np.arange(6), (10, 6)), axis=1)
            logs = np.take_along_axis(host, order, axis=1) + generator.normal(0, 0.01, (10, 6))
            cells = {
                (a, b): np.exp(logs[:, 3 * at + to])
                for at, a in enumerate("xy")
                for to, b in enumerate("pqr")
            }
            marked += any(effect.is_shown for effect in estimate_effects(["one", "other"], cells))
        yield "an effect is marked", f"2 x 3 equal cells, 10 blocks, AR {rho:g}", marked / sims, None
