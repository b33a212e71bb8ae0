"""Makes python/guestmark/agent/wire.py from crates/wire, which has each message once; `--check` only compares.

The crate contains only types, and this program parses the kinds that occur in it: constants, structs, enums without
values and enums of messages, with serde's `default`. The documentation of a call ends with a link to the type of its
answer. The names of the system-call mix are read from the agent, where the mix is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "crates" / "wire" / "src"
MIX = ROOT / "crates" / "agent" / "src" / "syscalls"
MADE = ROOT / "python" / "guestmark" / "agent" / "wire.py"
# `agent.messages` encodes and decodes the envelopes itself.
ENVELOPES = {"Request", "Answer", "Failed", "Chunk"}

HEAD = '''"""Messages between the control plane and the agent, made from crates/wire by tools/wire.py."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

A = TypeVar("A")
R = TypeVar("R")


class Call(msgspec.Struct, Generic[A, R], frozen=True):
    """A call by its name, with the types of its arguments and its answer (None: it has none)."""

    name: str
    arguments: type[A]
    answer: type[R]
'''

_INTEGERS = {"u8", "u16", "u32", "u64", "usize", "i32", "i64"}
_PLAIN = {"f64": "float", "bool": "bool", "String": "str", "ByteBuf": "bytes", "&'a [u8]": "bytes"}
_EMPTY = {"int": "0", "bool": "False", "str": '""'}


@dataclass
class Field:
    """A field of a struct, or a variant of an enum (`type` empty: without a value)."""

    name: str
    type: str
    doc: str
    default: bool = False


@dataclass
class Item:
    """A struct or an enum."""

    kind: str
    name: str
    doc: str
    parts: list[Field] = field(default_factory=list)


def parse_items(source: str) -> Iterator[Item]:
    """Parse the structs and enums of a Rust module, in order."""
    doc: list[str] = []
    attributes = ""
    item: Item | None = None
    for line in map(str.strip, source.splitlines()):
        if line.startswith("///"):
            doc.append(line.removeprefix("///").strip())
            continue
        if line.startswith("#["):
            attributes += line
            continue
        if begun := re.match(r"pub (struct|enum) (\w+)(?:<[^>]*>)? \{(\})?", line):
            item = Item(begun[1], begun[2], " ".join(doc))
            if begun[3]:
                yield item
                item = None
        elif line == "}" and item is not None:
            yield item
            item = None
        elif item is not None and (found := re.match(r"pub (\w+): (.*),$", line)):
            item.parts.append(Field(found[1], found[2], " ".join(doc), "default" in attributes))
        elif (
            item is not None
            and item.kind == "enum"
            and (found := re.match(r"(\w+)(?:\((?:#\[[^\]]*\] ?)?(.*)\))?,$", line))
        ):
            item.parts.append(Field(found[1], found[2] or "", " ".join(doc), "#[default]" in attributes))
        elif line and item is not None and not line.startswith("//"):
            raise SystemExit(f"tools/wire.py does not understand {line!r} in {item.name}")
        doc, attributes = [], ""


def python_type(rust: str) -> str:
    """Return Python's type for one of Rust."""
    if inner := re.fullmatch(r"Option<(.*)>", rust):
        return f"{python_type(inner[1])} | None"
    if inner := re.fullmatch(r"Vec<(.*)>", rust):
        return f"tuple[{python_type(inner[1])}, ...]"
    if inner := re.fullmatch(r"Box<(.*)>", rust):
        return python_type(inner[1])
    if rust in _INTEGERS:
        return "int"
    return _PLAIN.get(rust) or rust.rpartition("::")[2]


def to_snake_case(name: str) -> str:
    """Return a name as serde writes it with `snake_case`: `read_file` for `ReadFile`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def as_docstring(doc: str) -> str:
    """Return a comment of Rust as the text of a docstring."""
    plain = re.sub(r"\[`(?:\w+::)*(\w+)`\]", r"`\1`", doc).replace("\\", "\\\\")
    return plain if len(plain) <= 108 else f"{plain}\n    "


def render_struct(item: Item, usual: Mapping[str, str]) -> str:
    """Render a struct, or an enum of messages as a struct of which one field is set.

    `usual` holds the default values of enums without values.
    """
    lines = [f"class {item.name}(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):"]
    lines += [f'    """{as_docstring(item.doc)}"""', ""]
    for part in item.parts:
        if item.kind == "enum":
            lines.append(f"    {to_snake_case(part.name)}: {python_type(part.type)} | None = None")
            continue
        kind = python_type(part.type)
        empty = usual.get(kind) or _EMPTY.get(kind)
        empty = "None" if kind.endswith("| None") else "()" if kind.startswith("tuple") else empty
        lines.append(f"    {part.name}: {kind}{f' = {empty}' if part.default else ''}")
    return "\n".join(lines)


def render_enum(item: Item) -> str:
    """Render an enum without values as a `StrEnum`."""
    lines = [f"class {item.name}(StrEnum):", f'    """{as_docstring(item.doc)}"""', ""]
    for part in item.parts:
        value = to_snake_case(part.name)
        lines.append(f'    {value.upper()} = "{value}"  # {part.doc}')
    return "\n".join(lines)


def render_calls(item: Item) -> str:
    """Render the calls, each with the types of its arguments and its answer."""
    lines = []
    for part in item.parts:
        links = re.findall(r"\[`(?:\w+::)*(\w+)`\]", part.doc)
        arguments = python_type(part.type) if part.type else "None"
        answer = links[-1] if links else "None"
        types = f"{'type(None)' if arguments == 'None' else arguments}, {'type(None)' if answer == 'None' else answer}"
        name = to_snake_case(part.name)
        lines.append(f"# {as_docstring(part.doc).strip()}")
        lines.append(f'{name.upper()}: Call[{arguments}, {answer}] = Call("{name}", {types})')
    return "\n".join(lines)


def render_constants(source: str) -> Iterator[str]:
    """Render `pub const NAME: TYPE = EXPRESSION;`. The expressions mean the same in Python."""
    for name, expression in re.findall(r"^pub const (\w+): \w+ = (.*);$", source, re.MULTILINE):
        yield f"{name} = {expression}"


def render_mix() -> str:
    """Render the names of the system-call mix in their order, and of the parts without operations."""
    (listed,) = re.findall(
        r"^pub const ALL: .*? = &\[\n(.*?)^\];", (MIX / "mix.rs").read_text(), re.MULTILINE | re.DOTALL
    )
    names = re.findall(r'^    \("(\w+)", \|\|', listed, re.MULTILINE)
    parts = re.findall(
        r'^pub const (NOTHING|COMPUTE): &str = "(\w+)";', (MIX / "mod.rs").read_text(), re.MULTILINE
    )
    lines = [
        "# The system-call mix, in the order in which it is measured, after the empty timed part.",
        *(f'{name} = "{value}"' for name, value in parts),
        f"SYSTEM_CALLS = ({', '.join(map(repr, names))})",
    ]
    return "\n".join(lines)


def render_module() -> str:
    """Render the whole module, formatted."""
    files = [CRATE / "lib.rs", *sorted(path for path in CRATE.glob("*.rs") if path.name != "lib.rs")]
    sources = [path.read_text() for path in files]
    every = [item for source in sources for item in parse_items(source) if item.name not in ENVELOPES]
    parts = [HEAD, "\n".join(line for source in sources for line in render_constants(source)), render_mix()]
    parts += [
        render_enum(item)
        for item in every
        if item.kind == "enum" and not any(part.type for part in item.parts)
    ]
    # A struct stands after those that it has; Python reads annotations later, msgspec when it makes a decoder.
    usual = {
        item.name: f"{item.name}.{to_snake_case(part.name).upper()}"
        for item in every
        for part in item.parts
        if item.kind == "enum" and part.default
    }
    parts += [render_struct(item, usual) for item in every if item.kind == "struct"]
    parts += [render_struct(item, usual) for item in every if item.kind == "enum" and item.name != "Call"
              and any(part.type for part in item.parts)]  # fmt: skip
    parts += [render_calls(item) for item in every if item.name == "Call"]
    text = "\n\n\n".join(parts) + "\n"
    # The checked-in file passes ruff, so what is compared with it has to be formatted the same way.
    ruff = [sys.executable, "-m", "ruff"]
    text = subprocess.run(
        [*ruff, "check", "--quiet", "--fix", "--stdin-filename", str(MADE), "-"],
        input=text, capture_output=True, text=True, check=False, cwd=ROOT,
    ).stdout  # fmt: skip
    return subprocess.run(
        [*ruff, "format", "--stdin-filename", str(MADE), "-"],
        input=text, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip


def main() -> int:
    """Write the module, or compare it with the one that would be written."""
    text = render_module()
    if sys.argv[1:] == ["--check"]:
        if MADE.exists() and MADE.read_text() == text:
            return 0
        print(
            "python/guestmark/agent/wire.py is not what crates/wire says: python -m tools.wire makes it anew"
        )
        return 1
    MADE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
