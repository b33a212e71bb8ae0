"""Installs another distribution with an extension: a module that is an entry point, importable by started programs."""

from pathlib import Path

from tests.framework import IMPORTABLE


def brought(directory: Path, name: str, module: str) -> dict[str, str]:
    """Write a distribution with this module into `directory`, and return the environment in which programs find it.

    `module` is the module's text.
    """
    (directory / f"{name}.py").write_text(module)
    about = directory / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[guestmark]\n{name} = {name}\n")
    return {"PYTHONPATH": f"{IMPORTABLE}:{directory}"}
