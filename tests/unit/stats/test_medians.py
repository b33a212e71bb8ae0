"""The median, which NumPy's own is compared with."""

import numpy as np
import pytest

from guestmark.stats.medians import find_median, find_row_medians

_RARE = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.7e308, 5e-324])


@pytest.mark.parametrize("seed", range(200))
def test_it_is_numpy_s(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.lognormal(0, 3, (generator.integers(1, 9), generator.integers(1, 12)))
    if seed % 2:
        rows[generator.random(rows.shape) < 0.05] = generator.choice(_RARE)
    with np.errstate(all="ignore"):
        assert find_median(rows[0]) == pytest.approx(float(np.median(rows[0])), rel=0, abs=0, nan_ok=True)
        np.testing.assert_array_equal(find_row_medians(rows), np.median(rows, axis=1))


def test_no_values_have_none() -> None:
    assert np.isnan(find_median([]))
    assert find_median([1, 2]) == 1.5
