"""Finds decisions that the program takes on the words of a message; `./test` runs this. Prints PATH:LINE: WHAT.

The reason for a failure is a `Cause`. If the program compares, searches or looks up the text of an error, of a reason,
or of another program's output, its behaviour changes when somebody mends the English. Such texts are names like
`message`, `reason`, `why`, `hint` or `stderr`, an exception as a string, and names to which these are assigned.

An error that quotes another one's message has to pass on its cause, too.

Texts of other programs are read in one module, and the texts of earlier versions in one function of another.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "guestmark"
ALLOWED = {
    ("core/cause.py", "heard"),
    ("core/cause.py", "classify_old_reason"),
    ("core/findings.py", "_read_version_0_1"),
}
_TEXTS = {"message", "reason", "why", "hint", "meaning", "stderr"}
_OURS = {
    "GuestmarkError", "PlatformUnusableError", "MachineError", "AttestationError", "AgentError", "WorkloadError",
    "UnreachableError",
}  # fmt: skip
_ASKING = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count"}
_SEARCHING = {"search", "match", "fullmatch", "findall", "finditer"}
_KEEPING = {
    "strip", "rstrip", "lstrip", "lower", "upper", "casefold", "decode", "removeprefix", "removesuffix", "replace",
    "split", "splitlines", "partition", "rpartition", "join",
}  # fmt: skip


class _DecisionFinder(ast.NodeVisitor):
    """Walks one module, and tracks which names hold such texts in the current function."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._function = ""
        self._errors: set[str] = set()
        self._texts: set[str] = set()
        self.found: list[tuple[int, str]] = []

    def _is_text(self, node: ast.expr) -> bool:  # noqa: PLR0911
        match node:
            case ast.Name(id=name):
                return name in self._texts
            case ast.Attribute(attr=name):
                return name in _TEXTS
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name), *_]):
                return name in self._errors
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _KEEPING:
                return self._is_text(value)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="args")):
                return name in self._errors
            case ast.Subscript(value=value):
                return self._is_text(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._is_text(left) or self._is_text(right)
            case ast.BoolOp(values=values):
                return any(self._is_text(value) for value in values)
            case ast.NamedExpr(value=value):
                return self._is_text(value)
        return False

    def _report(self, node: ast.expr) -> None:
        if (self._path, self._function) not in ALLOWED:
            self.found.append((node.lineno, ast.unparse(node)))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Open a scope of names. Parameters that are named like such a text hold one."""
        before = self._function, self._errors, self._texts
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._function = self._function or node.name
        self._errors = set(self._errors)
        self._texts = self._texts | ({argument.arg for argument in arguments} & _TEXTS)
        self.generic_visit(node)
        self._function, self._errors, self._texts = before

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """Remember the exception's name."""
        if node.name:
            self._errors.add(node.name)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Mark a name that is assigned such a text, until it is assigned something else."""
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                (self._texts.add if self._is_text(node.value) else self._texts.discard)(target.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Treat `:=` as an assignment."""
        self.generic_visit(node)
        (self._texts.add if self._is_text(node.value) else self._texts.discard)(node.target.id)

    def visit_For(self, node: ast.For) -> None:
        """Mark the loop variable: a part of such a text is one."""
        if isinstance(node.target, ast.Name) and self._is_text(node.iter):
            self._texts.add(node.target.id)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Treat a comprehension as a loop."""
        if isinstance(node.target, ast.Name) and self._is_text(node.iter):
            self._texts.add(node.target.id)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Report `"x" in message`, `message == "x"`, `message in {"x", "y"}`; a test for emptiness is allowed."""
        sides = [node.left, *node.comparators]
        if any(map(self._is_text, sides)) and not any(map(_is_empty, sides)):
            self._report(node)
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        """Report `match message:`."""
        if self._is_text(node.subject):
            self._report(node.subject)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Report `TABLE[message]`."""
        if self._is_text(node.slice):
            self._report(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Report `message.find("x")`, `PATTERN.search(message)`, `TABLE.get(message)`, or an error without cause."""
        if isinstance(node.func, ast.Attribute):
            asked = node.func.attr in _ASKING and self._is_text(node.func.value)
            searched = node.func.attr in _SEARCHING and any(map(self._is_text, node.args))
            looked_up = node.func.attr == "get" and bool(node.args) and self._is_text(node.args[0])
            if asked or searched or looked_up:
                self._report(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OURS:
            quoted = [part for argument in node.args for part in ast.walk(argument)]
            passed = any(keyword.arg == "cause" for keyword in node.keywords)
            if not passed and any(
                isinstance(part, ast.Attribute) and part.attr == "message" for part in quoted
            ):
                self.found.append((node.lineno, f"{ast.unparse(node)}, without the cause of what it quotes"))
        self.generic_visit(node)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in {"", b"", None}


def find_decisions(source: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield line and expression of every decision on words in a module's source; `path` is below the package."""
    scope = _DecisionFinder(path)
    scope.visit(ast.parse(source))
    yield from scope.found


def main() -> int:
    """Examine every module of the package."""
    broken = 0
    for file in sorted(PACKAGE.rglob("*.py")):
        path = str(file.relative_to(PACKAGE))
        for line, what in find_decisions(file.read_text(), path):
            print(f"python/guestmark/{path}:{line}: decides on words: {what}")
            broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
