"""`stats` decides, `report` says: no module of the report computes."""

import ast
from pathlib import Path

import guestmark.report

_COMPUTING = {"math", "numpy", "scipy", "statistics"}


def test_no_module_of_the_report_computes() -> None:
    computing = []
    for path in Path(str(guestmark.report.__path__[0])).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules.append(node.module or "")
            if any(module.split(".")[0] in _COMPUTING for module in modules):
                computing.append(path.name)
    assert computing == []
