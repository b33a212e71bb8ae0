"""What tests share: a module for each thing they need made, started or looked at, and the places of the checkout."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = CHECKOUT / "python"
FRAMEWORK = Path(__file__).resolve().parent
GOLDEN = CHECKOUT / "tests/unit/golden"

# For Python programs that tests start: they import guestmark, and this package.
IMPORTABLE = f"{PACKAGES}:{CHECKOUT}"
