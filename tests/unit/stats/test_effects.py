"""Main effects and interactions: known ones are found, none are made up, and an incomplete matrix has none."""

import itertools

import numpy as np
import pytest

from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.report.sections.factor_effects import make_tables
from guestmark.stats.analysis import analyse_run
from guestmark.stats.effects import FEWEST_BLOCKS, Array, arrange_values, estimate_effects
from tests.framework.runs import EXEC, constructed

FACTORS = ("platform", "memory", "smp")


def matrix(seed: int, noise: float = 0.01, blocks: int = 10) -> dict[tuple[str, ...], Array]:
    """uml is ×2 of tcg, 1G ×1.1 of 512M, both together ×1.2 more; smp does nothing."""
    generator = np.random.default_rng(seed)
    found: dict[tuple[str, ...], Array] = {}
    common = generator.normal(0, 0.2, blocks)
    for platform, memory, smp in itertools.product(("tcg", "uml"), ("512M", "1G"), ("1", "2", "4")):
        log = np.log(2) * (platform == "uml") + np.log(1.1) * (memory == "1G")
        log += np.log(1.2) * (platform == "uml" and memory == "1G")
        found[platform, memory, smp] = np.exp(log + common + generator.normal(0, noise, blocks))
    return found


def test_known_effects_are_found() -> None:
    found = {effect.levels: effect for effect in estimate_effects(FACTORS, matrix(1))}
    assert found["uml",].ratio == pytest.approx(2 * 1.2**0.5, rel=0.02)
    assert found["1G",].ratio == pytest.approx(1.1 * 1.2**0.5, rel=0.02)
    assert found["uml", "1G"].ratio == pytest.approx(1.2, rel=0.03)
    assert found["uml", "1G"].factors == ("platform", "memory")
    assert found["uml", "1G"].against == ("tcg", "512M")
    assert {levels for levels, effect in found.items() if effect.is_shown} == {
        ("uml",),
        ("1G",),
        ("uml", "1G"),
    }
    assert len(found) == 4 + 5  # levels but the first; pairs of them


def test_all_intervals_hold_together() -> None:
    """With nothing but noise some effect is shown in at most one matrix of twenty."""
    generator = np.random.default_rng(7)
    cells = list(itertools.product("ab", "ab", "abc"))
    wrong = 0
    for _ in range(400):
        values: dict[tuple[str, ...], Array] = {
            levels: np.exp(generator.normal(0, 0.05, 8)) for levels in cells
        }
        wrong += any(effect.is_shown for effect in estimate_effects(FACTORS, values))
    assert wrong / 400 <= 0.07


def test_what_is_no_full_matrix_has_none() -> None:
    full = matrix(2)
    assert (
        estimate_effects(
            FACTORS, {levels: values for levels, values in full.items() if levels != ("tcg", "1G", "2")}
        )
        == ()
    )
    assert estimate_effects(("smp",), {(name,): np.ones(8) for name in "ab"}) == ()
    assert (
        estimate_effects(FACTORS, {levels: values[: FEWEST_BLOCKS - 1] for levels, values in full.items()})
        == ()
    )
    assert estimate_effects(FACTORS, {levels: values * 0 for levels, values in full.items()}) == ()
    full["tcg", "1G", "2"][0] = np.nan
    assert {effect.blocks for effect in estimate_effects(FACTORS, full)} == {9}


def test_a_report_has_the_effects_of_its_matrix() -> None:
    cells = [
        (Cell(f"{platform} memory={memory}", EXEC, PlatformSpec.read(platform), {"memory": memory}), ratio)
        for (platform, memory), ratio in zip(
            itertools.product(("tcg", "uml"), ("512M", "1G")), (1.0, 1.0, 2.0, 3.0), strict=True
        )
    ]
    host = (Cell("host", EXEC, PlatformSpec.read("host"), baseline=True), 0.5)  # has no memory to set
    run = constructed([host, *cells])
    (workload,) = analyse_run(run.plan, run.trials).workloads
    (table,) = make_tables(workload)
    names = [row.name.short for row in table.rows]
    assert names == ["platform uml/tcg", "memory 1G/512M", "platform uml/tcg with memory 1G/512M"]
    shown = {effect.levels: effect.ratio for effect in estimate_effects(*arrange_values(workload, "wall_s"))}
    assert shown["uml", "1G"] == pytest.approx(1.5, rel=0.03)
    assert make_tables(analyse_run(run.plan, run.trials[:10]).workloads[0]) == []
