"""Another distribution that brings something: a module that is an entry point, importable by programs tests start."""

from pathlib import Path

from tests.framework import IMPORTABLE


def brought(directory: Path, name: str, module: str) -> dict[str, str]:
    """The environment for a program that is to find `module`, the text of one; it lies in `directory`."""
    (directory / f"{name}.py").write_text(module)
    about = directory / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[guestmark]\n{name} = {name}\n")
    return {"PYTHONPATH": f"{IMPORTABLE}:{directory}"}
