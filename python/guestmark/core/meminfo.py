"""Reads this host's memory sizes from its kernel."""

from pathlib import Path


def read_meminfo(file: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return the sizes in bytes by name: `MemTotal`, `MemAvailable`, …; empty if the file does not exist."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    parts = (line.replace(":", " ").split() for line in lines)
    return {words[0]: int(words[1]) << 10 for words in parts if words[2:] == ["kB"]}


def compute_spare_memory(share: int, least: int) -> int:
    """Return how many bytes may be taken now: available memory minus what the host keeps.

    The host keeps a `share`th of all memory, but no less than `least` bytes.
    """
    found = read_meminfo()
    return found["MemAvailable"] - max(found["MemTotal"] // share, least)
