"""Modules of a crate use each other in no circles, as those of Python do."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.framework import CHECKOUT

Module = tuple[str, ...]


def modules_of(crate: Path) -> dict[Module, str]:
    """The code of each module by its path in the crate, without comments and tests."""
    found = {}
    for file in crate.rglob("*.rs"):
        parts = file.relative_to(crate).with_suffix("").parts
        parts = parts[:-1] if parts[-1] in {"mod", "lib", "main"} else parts
        code = re.sub(r"//[^\n]*", "", file.read_text())
        found[parts] = code.partition("#[cfg(test)]\nmod tests")[0]
    return found


def expand(path: str) -> Iterator[list[str]]:
    """`a::{b, c::d}` as the paths `a::b` and `a::c::d`."""
    head, brace, rest = path.partition("{")
    start = [part.strip() for part in head.split("::") if part.strip()]
    if not brace:
        yield start
        return
    # Commas inside of inner braces belong to those.
    pieces = re.findall(r"(?:[^,{}]|\{(?:[^{}]|\{[^{}]*\})*\})+", rest.rpartition("}")[0])
    for piece in pieces:
        yield from ([*start, *inner] for inner in expand(piece))


def uses_of(module: Module, code: str, modules: Mapping[Module, str]) -> set[Module]:
    """The other modules that one names by `use` or by a path."""
    children = {other[-1] for other in modules if other[:-1] == module and other}
    named = [path for text in re.findall(r"\buse\s+([^;]+);", code) for path in expand(text)]
    named += [path.split("::") for path in re.findall(r"\b(?:crate|super|self)(?:::\w+)+", code)]
    named += [[child] for child in children if re.search(rf"(?<![\w:]){child}::\w", code)]
    found = set()
    for first, *rest in named:
        if first == "crate":
            target = rest
        elif first == "super":
            up = 1 + next((depth for depth, part in enumerate(rest) if part != "super"), len(rest))
            target = [*module[:-up], *rest[up - 1 :]] if up < len(module) else rest[up - 1 :]
        elif first == "self" or first in children:
            target = [*module, *([first] if first in children else []), *rest]
        else:
            continue
        while target and tuple(target) not in modules:
            target = target[:-1]
        found.add(tuple(target))
    return found - {module, ()}


@pytest.mark.parametrize("crate", ["agent", "capture", "wire"])
def test_modules_use_each_other_in_no_circles(crate: str) -> None:
    modules = modules_of(CHECKOUT / "crates" / crate / "src")
    uses = {module: uses_of(module, code, modules) for module, code in modules.items()}
    assert sum(map(len, uses.values())) >= 1 or crate == "wire"
    # What uses nothing that is left can go; what remains then goes in circles.
    while free := [module for module, used in uses.items() if not used & uses.keys()]:
        for module in free:
            del uses[module]
    assert not uses, " ".join("::".join(module) for module in uses)


def test_a_circle_is_found() -> None:
    modules = {
        ("a",): "use crate::b::{c::D, E};",
        ("b",): "mod c; use c::D;",
        ("b", "c"): "use super::super::a::F; crate::a::f();",
    }
    assert uses_of(("a",), modules["a",], modules) == {("b",), ("b", "c")}
    assert uses_of(("b",), modules["b",], modules) == {("b", "c")}
    assert uses_of(("b", "c"), modules["b", "c"], modules) == {("a",)}
