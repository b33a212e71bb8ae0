"""Determines which functions of the package its commands can reach, from the source alone.

A function or class reaches the names in its text: names that its module defines or imports, attributes of imported
modules, and `module:attribute` in strings, by which descriptions name the code that runs. An import alone reaches only
the body of the module. Parameters and names that a function assigns are local.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NAMED = re.compile(r"(guestmark(?:\.\w+)+):(\w+)")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BODY = "<body>"  # stands for the code that runs when a module is imported
_IMPORTED = " imported"  # marks what is only imported
Graph = dict[str, set[str]]  # by `module.function`


def sources(root: Path) -> dict[str, str]:
    """Return the text of every module below `root/guestmark`, by module name."""
    found = {}
    for path in sorted((root / "guestmark").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def graph(modules: Mapping[str, str]) -> Graph:
    """Return by name what each function, class and module body of these modules reaches directly."""
    read = {name: _read(name, text) for name, text in modules.items()}
    names = {name: module.names for name, module in read.items()}
    return {
        owner: {home for target in targets for home in _at_home(target, names)}
        for module in read.values()
        for owner, targets in module.references.items()
    }


def reachable(edges: Graph, roots: Iterable[str]) -> set[str]:
    """Return everything that can be reached from these roots. Raises KeyError for a root that does not exist."""
    pending = list(roots)
    found: set[str] = set()
    for root in pending:
        edges[root]
    while pending:
        name = pending.pop()
        if name not in found and name in edges:
            found.add(name)
            pending += edges[name]
    return found


@dataclass(frozen=True)
class _Module:
    """The full name of each local name of a module, and the names that its functions, classes and body refer to."""

    names: Mapping[str, str]
    references: Mapping[str, frozenset[str]]


@functools.lru_cache(maxsize=2048)
def _read(module: str, text: str) -> _Module:
    tree = ast.parse(text)
    names = {name: of for node in ast.walk(tree) for name, of in _imports(node)}
    names |= {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, _DEFINITIONS)}
    body: set[str] = set()
    references = {}
    for node in tree.body:
        if isinstance(node, _DEFINITIONS):
            references[f"{module}.{node.name}"] = frozenset({f"{module}.{BODY}", *_reached(node, names)})
            for decorator in node.decorator_list:
                body.update(_reached(decorator, names))
        else:
            body.update(_reached(node, names))
    return _Module(names, {**references, f"{module}.{BODY}": frozenset(body)})


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each local name of an import statement, with the full name that it stands for."""
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, alias.name


def _reached(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    inside = list(ast.walk(node))
    own = {inner.arg for inner in inside if isinstance(inner, ast.arg)}
    own |= {
        inner.id for inner in inside if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)
    }
    for inner in inside:
        match inner:
            case ast.Name(id=name) if name in names and name not in own:
                yield names[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names:
                yield f"{names[name]}.{attribute}"
            case ast.Constant(value=str() as text):
                yield from (f"{module}.{attribute}" for module, attribute in _NAMED.findall(text))
            case ast.Import() | ast.ImportFrom():
                yield from (f"{of}{_IMPORTED}" for _, of in _imports(inner))


def _at_home(name: str, names: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the name as defined in its own module, followed through re-exports; for a module, its body."""
    if name.endswith(_IMPORTED):
        imported = name.removesuffix(_IMPORTED)
        yield f"{imported if imported in names else imported.rpartition('.')[0]}.{BODY}"
        return
    if name.endswith(BODY):
        yield name
        return
    for _ in range(8):
        if name in names:
            yield f"{name}.{BODY}"
            return
        module, _, attribute = name.rpartition(".")
        if module not in names:
            return
        yield f"{module}.{BODY}"
        further = names[module].get(attribute, name)
        if further == name:
            yield name
            return
        name = further
