"""The text on a VGA screen, read from the guest's memory; other modes have a picture only."""

from pathlib import Path

from guestmark.platforms.qmp import Monitor

_TEXT_AT = 0xB8000  # of the VGA's text page
_COLUMNS, _ROWS = 80, 25


def screen_text(monitor: Monitor, scratch: Path) -> str:
    """Lines on the screen in text mode (empty lines at the end left out). Raises `MachineError`."""
    file = scratch / "screen.bin"
    size = _COLUMNS * _ROWS * 2
    monitor.execute("pmemsave", {"val": _TEXT_AT, "size": size, "filename": str(file)})
    data = file.read_bytes()
    characters = data[0:size:2].decode("cp437")
    lines = [characters[at : at + _COLUMNS].rstrip(" \0") for at in range(0, len(characters), _COLUMNS)]
    text = "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)
    return text.rstrip()
