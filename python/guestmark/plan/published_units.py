"""Units of publications and how they relate to the units guestmark measures in."""

from guestmark.core.errors import unknown

# Unit: (guestmark's own unit, how many of them it is). MB/s is 10^6 bytes a second.
_UNITS = {
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "µs": ("s", 1e-6),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "min": ("s", 60.0),
    "B": ("B", 1.0),
    "kB": ("B", 1e3),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "B/s": ("B/s", 1.0),
    "kB/s": ("B/s", 1e3),
    "MB/s": ("B/s", 1e6),
    "MiB/s": ("B/s", 2.0**20),
    "GB/s": ("B/s", 1e9),
    "bit/s": ("bit/s", 1.0),
    "Mbit/s": ("bit/s", 1e6),
    "Gbit/s": ("bit/s", 1e9),
}


def size_of(unit: str, measured: str) -> float:
    """How many of the `measured` unit one `unit` is; 1.0 when they are the same. Raises `KeyError`."""
    if unit == measured:
        return 1.0
    own, size = _UNITS[unit]
    if own != measured:
        raise KeyError(unit)
    return size


def check_unit(unit: str, measured: str) -> None:
    """Raises `UsageError` for a unit that cannot be compared with figures in `measured`."""
    try:
        size_of(unit, measured)
    except KeyError:
        fitting = [name for name, (own, _) in _UNITS.items() if own == measured]
        raise unknown(f"unit for figures in {measured or 'no unit'}", unit, fitting or [measured]) from None
