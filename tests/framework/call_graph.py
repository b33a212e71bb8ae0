"""Which functions of the product can be reached from its commands, read from the source alone.

A function or class reaches what its text names: what its module defines or imports, attributes of imported modules, and
`module:attribute` in strings, by which descriptions name the code that runs. An import alone reaches only the body of
the module. Names that are parameters or assigned in a function are its own.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NAMED = re.compile(r"(guestmark(?:\.\w+)+):(\w+)")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BODY = "<body>"  # of a module: what its import runs
_IMPORTED = " imported"  # marks what is only imported
Graph = dict[str, set[str]]  # by `module.function`


def sources(root: Path) -> dict[str, str]:
    """The text of every module below `root/guestmark`, by its name."""
    found = {}
    for path in sorted((root / "guestmark").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def graph(modules: Mapping[str, str]) -> Graph:
    """What each function, class and module body of these modules reaches directly."""
    read = {name: _read(name, text) for name, text in modules.items()}
    names = {name: module.names for name, module in read.items()}
    return {
        owner: {home for target in targets for home in _at_home(target, names)}
        for module in read.values()
        for owner, targets in module.references.items()
    }


def reachable(edges: Graph, roots: Iterable[str]) -> set[str]:
    """All that can be reached from these. Raises KeyError for a root that does not exist."""
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
    """What the names of a module stand for, and what each of its functions, classes and its body refer to."""

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
    """Local names and what they stand for, of one import statement."""
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
    """The name where it is defined, through the packages that pass it on; the body of a module for a module."""
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
