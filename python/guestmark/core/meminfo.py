"""This host's memory, as its kernel counts it."""

from pathlib import Path


def read_meminfo(file: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Its sizes in bytes, by name: `MemTotal`, `MemAvailable`, …; empty where there is no such file."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    parts = (line.replace(":", " ").split() for line in lines)
    return {words[0]: int(words[1]) << 10 for words in parts if words[2:] == ["kB"]}


def spare_memory(share: int, least: int) -> int:
    """Bytes that may be taken now: what is available, less one in `share` of all, or `least`, that the host keeps."""
    found = read_meminfo()
    return found["MemAvailable"] - max(found["MemTotal"] // share, least)
