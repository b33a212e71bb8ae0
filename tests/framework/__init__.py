"""Shared code of the tests: a module for each thing that they make, start or inspect, and the checkout's paths."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = CHECKOUT / "python"
FRAMEWORK = Path(__file__).resolve().parent
GOLDEN = CHECKOUT / "tests/unit/golden"

# For Python programs that tests start: they import guestmark, and this package.
IMPORTABLE = f"{PACKAGES}:{CHECKOUT}"
