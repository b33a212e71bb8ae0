"""Screening: a fraction of a factorial is measured, and main effects predict which of the rest are worth measuring.

The fraction is chosen greedily for the determinant of its information matrix (D-optimality; Mitchell 1974, "An
algorithm for the construction of D-optimal experimental designs"). Effects that main effects do not explain,
interactions and noise, widens the set that is kept: if they explain little, nothing is dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from guestmark.core.tuning import Candidate

# With fewer candidates, measuring a fraction first saves nothing.
SMALLEST = 16
_SHARE = 0.34
# Candidates that are measured beyond the number of the model's parameters.
_SPARE = 5
_WIDE = 2.5  # residual standard deviations
Matrix = NDArray[np.float64]


def make_design_matrix(candidates: Sequence[Candidate]) -> Matrix:
    """Return a row for each candidate: the intercept, then its levels in deviation coding."""
    columns = [np.ones(len(candidates))]
    for name in _list_candidate_factors(candidates):
        levels = _list_candidate_levels(candidates, name)
        for level in levels[1:]:
            # Deviation coding: the first level is minus the sum of the others, so the intercept is the overall mean.
            code = {level: 1.0, levels[0]: -1.0}
            column = [code.get(candidate.levels.get(name, ""), 0.0) for candidate in candidates]
            columns.append(np.array(column))
    return np.column_stack(columns)


def _list_candidate_factors(candidates: Sequence[Candidate]) -> list[str]:
    names: set[str] = set()
    for candidate in candidates:
        names.update(candidate.levels)
    return sorted(names)


def _list_candidate_levels(candidates: Sequence[Candidate], factor: str) -> list[str]:
    """Return the levels that candidates have of a factor, an empty one for those without it."""
    return sorted({candidate.levels.get(factor, "") for candidate in candidates})


def choose_fraction(candidates: Sequence[Candidate]) -> list[str]:
    """Return the ids of the candidates to measure first; all of them if a fraction would save nothing."""
    chosen = _choose_rows(tuple(tuple(sorted(candidate.levels.items())) for candidate in candidates))
    return [candidates[number].id for number in chosen]


@functools.lru_cache(maxsize=8)  # a race asks again after each block
def _choose_rows(levels: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[int, ...]:
    """Return the numbers of the candidates with these levels to measure first."""
    matrix = make_design_matrix([Candidate("", dict(pairs)) for pairs in levels])
    parameters = int(np.linalg.matrix_rank(matrix))
    wanted = max(parameters + _SPARE, round(_SHARE * len(levels)))
    if len(levels) < SMALLEST or wanted > 0.7 * len(levels):
        return tuple(range(len(levels)))
    return _choose_greedily(matrix, wanted)


def choose_informative(candidates: Sequence[Candidate], number: int) -> list[str]:
    """Return the ids of `number` candidates that together inform most about all levels, chosen like a fraction."""
    rows = _choose_greedily(make_design_matrix(candidates), min(number, len(candidates)))
    return [candidates[row].id for row in rows]


def _choose_greedily(matrix: Matrix, wanted: int) -> tuple[int, ...]:
    """Return the numbers of the rows that add most to the determinant of the information matrix, one by one."""
    # A weak prior makes the information matrix invertible before enough rows are chosen.
    inverse = np.eye(matrix.shape[1]) * 1e3
    left = list(range(len(matrix)))
    chosen: list[int] = []
    for _ in range(wanted):
        rows = matrix[left]
        gains = np.einsum("ij,jk,ik->i", rows, inverse, rows)
        best = left.pop(int(np.argmax(gains)))
        chosen.append(best)
        row = matrix[best]
        # The inverse after one more row, by Sherman and Morrison's formula.
        step = inverse @ row
        inverse -= np.outer(step, step) / (1.0 + row @ step)
    return tuple(sorted(chosen))


def predict_losers(
    candidates: Sequence[Candidate], means: Mapping[str, float], margin: float
) -> dict[str, str]:
    """Return the candidates that are not worth measuring, by id, and why.

    `means` are the log values of the fraction, lower is better, with block effects removed.
    """
    matrix = make_design_matrix(candidates)
    measured = [number for number, candidate in enumerate(candidates) if candidate.id in means]
    values = np.array([means[candidates[number].id] for number in measured])
    rows = matrix[measured]
    freedom = len(measured) - int(np.linalg.matrix_rank(rows))
    if freedom < 2:
        return {}
    solution = np.linalg.lstsq(rows, values, rcond=None)[0]
    residual = values - rows @ solution
    spread = float(np.sqrt(residual @ residual / freedom))
    information = np.linalg.pinv(rows.T @ rows)
    predicted = matrix @ solution
    errors = spread * np.sqrt(1.0 + np.einsum("ij,jk,ik->i", matrix, information, matrix))
    best = float(values.min())
    dropped = {}
    for number, candidate in enumerate(candidates):
        # The race judges measured candidates itself, with their own errors.
        lowest = float(predicted[number] - _WIDE * errors[number])
        if candidate.id not in means and lowest > best + margin:
            ratio = float(np.exp(predicted[number] - best))
            dropped[candidate.id] = f"main effects predict ×{ratio:.2f} the best measured value"
    return dropped


def estimate_main_effects(
    candidates: Sequence[Candidate], means: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return by factor and level the ratio to the factor's mean, other factors held equal, over measured candidates."""
    known = [candidate for candidate in candidates if candidate.id in means]
    if len(known) < 2:
        return {}
    matrix = make_design_matrix(known)
    values = np.array([means[candidate.id] for candidate in known])
    solution = np.linalg.lstsq(matrix, values, rcond=None)[0]
    found: dict[str, dict[str, float]] = {}
    position = 1
    for name in _list_candidate_factors(known):
        levels = _list_candidate_levels(known, name)
        if len(levels) < 2:
            continue
        effects = [float(effect) for effect in solution[position : position + len(levels) - 1]]
        position += len(levels) - 1
        shown = dict(zip(levels, [-sum(effects), *effects], strict=True))
        found[name] = {level: float(np.exp(effect)) for level, effect in shown.items()}
    return found


def find_interactions(
    candidates: Sequence[Candidate], means: Mapping[str, float]
) -> list[tuple[tuple[str, str], float]]:
    """Return pairs of levels whose mean differs from what the main effects predict, as ratios, largest first.

    Only pairs above the noise: over two standard errors of what is left when the pair's own effect is removed.
    """
    known = [candidate for candidate in candidates if candidate.id in means]
    if len(known) < _SPARE:
        return []
    matrix = make_design_matrix(known)
    values = np.array([means[candidate.id] for candidate in known])
    residual = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
    names = _list_candidate_factors(known)
    found = []
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            groups: dict[tuple[str, str], list[float]] = {}
            for candidate, left in zip(known, residual, strict=True):
                pair = (
                    f"{first}={candidate.levels.get(first, '')}",
                    f"{second}={candidate.levels.get(second, '')}",
                )
                groups.setdefault(pair, []).append(float(left))
            for pair, some in groups.items():
                if len(some) < 3:
                    continue
                error = float(np.std(some, ddof=1)) / float(np.sqrt(len(some)))
                mean = float(np.mean(some))
                if abs(mean) > 2 * error and abs(mean) > 0.01:
                    found.append((pair, float(np.exp(mean))))
    return sorted(found, key=lambda item: -abs(float(np.log(item[1]))))
