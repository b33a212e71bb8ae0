"""Lists all texts that reports can print, from their code, and compares them with bench/statistics/PRINTED.md.

`python -m tools.sentences` prints what the list lacks or has too much of, as lines to add or to remove; `./test` runs
the same. Every text of two words or more in `report` and `page` has a line in the list: what claims something is a
member of `guestmark.page.claims.Claim` or one of its parts, and names it, so that it has an error rate in SENTENCES.md;
all else is a fact (what was recorded or done), a figure (a number with its interval, a heading, a legend) or advice.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "guestmark"
REGISTER = ROOT / "bench" / "statistics" / "PRINTED.md"
# These modules print keys and markup; what documents and pictures say in words comes from nodes.
_NOT_PRINTED = {"report/schema.py", "report/render/html.py", "report/render/charts.py"}
_TWO_WORDS = re.compile(r"[A-Za-z]{2,}[,;:]? +[a-z{]|[a-z}] +[a-z]{2,}")
_LINE = re.compile(r"- (?P<kind>fact|figure|advice|claim (?P<claim>[A-Z_]+)): `(?P<text>.*)`")


def collect_printed() -> dict[str, set[str]]:
    """Return the texts of each module, with `{}` for what is filled in; docstrings are none."""
    found = {}
    for folder in ("page", "report"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            if name in _NOT_PRINTED or name == "page/claims.py":
                continue
            texts = {text for text in _find_texts(ast.parse(path.read_text())) if _TWO_WORDS.search(text)}
            if texts:
                found[name] = texts
    return found


def read_register(text: str) -> dict[str, dict[str, str]]:
    """Return by module and text the kind: fact, figure, advice, or the name of a claim.

    Raises ValueError for a line that is none.
    """
    found: dict[str, dict[str, str]] = {}
    module = ""
    for line in text.splitlines():
        if line.startswith("## "):
            module = line.removeprefix("## ")
        elif line.startswith("- "):
            matched = _LINE.fullmatch(line)
            if matched is None:
                raise ValueError(f"no line of the list: {line}")
            found.setdefault(module, {})[matched["text"]] = matched["claim"] or matched["kind"]
    return found


def compare_with_register() -> list[str]:
    """Return what the list lacks, and what it has that no code prints, one line each."""
    printed, listed = collect_printed(), read_register(REGISTER.read_text())
    differences = []
    for module in sorted(printed.keys() | listed.keys()):
        here, there = printed.get(module, set()), set(listed.get(module, {}))
        differences += [f"{module}: add - KIND: `{text}`" for text in sorted(here - there)]
        differences += [f"{module}: remove `{text}`" for text in sorted(there - here)]
    return differences


def _find_texts(tree: ast.AST) -> Iterator[str]:
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _on_one_line(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = []
            for part in node.values:
                parts.append(part.value if isinstance(part, ast.Constant) else "{}")
            yield _on_one_line("".join(map(str, parts)))


def _on_one_line(text: str) -> str:
    return text.replace("`", "'").replace("\n", "\\n")


def main() -> int:
    """Print the differences; return 1 if there are any."""
    differences = compare_with_register()
    for line in differences:
        print(line)
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
