"""Makes reference text from the program itself: commands, platforms, factors, architectures and workloads.

A Sphinx extension. A page of docs/ holds a comment `<!-- guestmark: commands -->` (or platforms, …), which the
build replaces by Markdown that is made from the same objects that the command line uses. Nothing is written to disk, so
nothing can go stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

MARK = re.compile(r"^<!-- guestmark: (\w+) -->$", re.MULTILINE)


def describe_commands() -> str:
    """Describe every command: its usage, what it does, its arguments and options."""
    import click

    from guestmark.cli.app import app
    from guestmark.cli.verbs import VERBS

    parent = click.Context(app, info_name="guestmark")
    return "\n".join(
        line for verb in VERBS for line in _command_section(verb, app.get_command(parent, verb), parent)
    )


def _command_section(verb: str, command: Any, parent: Any) -> Iterator[str]:
    context = command.make_context(
        verb, [], parent=parent, resilient_parsing=True, help_option_names=["-h", "--help"]
    )
    yield f"## {verb}\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    yield from (f"{_as_markdown(paragraph)}\n" for paragraph in (command.help or "").strip().split("\n\n"))
    for parameter in command.get_params(context):
        # Hidden parameters have no record.
        if record := parameter.get_help_record(context):
            declaration, text = record
            yield f"`{declaration}`\n: {_as_markdown(text)}\n"


def describe_repetition() -> str:
    """Make a table of the options for repetition: their names on command line, in plans and in the library."""
    from guestmark.plan.policy_options import list_policy_options

    rows = []
    for name, option in list_policy_options().items():
        # The library has no budget: `guestmark.run` measures the whole plan.
        argument = f"`{name}`" if name != "budget_s" else "–"
        key = f"`{option.key}`" if option.key else "–"
        rows.append([f"`{option.name}`", key, argument, _as_markdown(option.help)])
    return _markdown_table(["option", "key of `[repetition]`", "argument of the library", "meaning"], rows)


def describe_platforms() -> str:
    """Make a table of the platforms that can be measured: what they are, what they run, whether they hold guests."""
    from guestmark.core import registry

    rows = []
    for kind in registry.index_platform_kinds().values():
        if kind.is_supported:
            inside = "can hold guests" if kind.load_nested_class else ""
            name = f"{kind.name}@ARCH" if kind.needs_arch else kind.name
            name = f"{kind.name}:{kind.destination}" if kind.takes_destination else name
            rows.append([f"`{name}`", _as_markdown(kind.help), inside, _list_programs(kind.programs)])
    return _markdown_table(
        ["platform", "what it is", "nesting", "programs it may run (Debian's package)"], rows
    )


def describe_factors() -> str:
    """Make a table of the factors: what each sets, some of its levels, and who takes it."""
    from guestmark.core import registry

    rows = []
    for name, factor in sorted(registry.factors().items()):
        levels = ", ".join(f"`{level}`" for level in factor.levels)
        rows.append(
            [
                f"`{name}`",
                _as_markdown(factor.help),
                levels,
                _as_markdown(registry.describe_takers(factor)),
            ]
        )
    return _markdown_table(["factor", "what it sets", "levels, for instance", "for"], rows)


def describe_architectures() -> str:
    """Make a table of the architectures that guests can have, and of the sources of what they boot."""
    from guestmark.core.architectures import ARCHITECTURES

    rows = [
        [
            f"`{row.name}`",
            f"`{row.machine_name}`",
            "big-endian" if row.big_endian else "little-endian",
            f"{row.page_size >> 10} KiB",
            row.kernel,
            "the distribution's packages" if row.root else "none",
        ]
        for row in ARCHITECTURES.values()
    ]
    return _markdown_table(["architecture", "`uname -m`", "bytes", "pages", "kernel", "programs"], rows)


def describe_workloads() -> str:
    """Describe every kind of workload: its parameters, their defaults, and what it measures by default."""
    from guestmark.core import registry

    return "\n".join(
        line for kind in registry.index_workload_kinds().values() for line in _workload_section(kind)
    )


def _workload_section(kind: Any) -> Iterator[str]:
    yield f"## {kind.name}\n"
    yield f"{_as_sentence(kind.help)}\n"
    if fields := kind.params_model().model_fields:
        rows = []
        for name, field in fields.items():
            text = _as_markdown(field.description or "")
            rows.append([f"`{name}`", text, _describe_type(field), _describe_default(field)])
        yield _markdown_table(["parameter", "what it is", "type, unit", "default"], rows)
    if own := ", ".join(f"`{factor.name}`" for factor in kind.factors):
        yield f"Factors of its own: {own}.\n"
    if kind.programs:
        yield f"Programs it runs: {_list_programs(kind.programs)}.\n"
    if metrics := _default_metrics(kind):
        listed = ", ".join(f"`{metric.name}` ({_describe_unit(metric)})" for metric in metrics)
        yield f"Measured, by default parameters (less is better unless stated): {listed}.\n"


def _list_programs(programs: Any) -> str:
    return ", ".join(f"`{program.name}` ({program.package})" for program in programs)


def _describe_unit(metric: Any) -> str:
    unit = "a number" if metric.unit == "1" else metric.unit
    return f"{unit}, more is better" if metric.better.value == "higher" else unit


def _default_metrics(kind: Any) -> Any:
    """Return the metrics with default parameters; none if a parameter has no default."""
    from guestmark.core.model import WorkloadSpec

    try:
        return kind.metrics_of(WorkloadSpec(kind.name, kind.check_params({})))
    except Exception:
        return ()


_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def _describe_type(field: Any) -> str:
    """Return the type of a parameter in words, with its limits."""
    extra = field.json_schema_extra or {}
    said = extra.get("kind") or _type_in_words(field.annotation)
    ends = [getattr(limit, end) for end in ("ge", "le") for limit in field.metadata if hasattr(limit, end)]
    return f"{said}, {ends[0]} to {ends[1]}" if len(ends) == 2 else said


def _type_in_words(annotation: Any) -> str:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in {Union, UnionType}:
        (annotation,) = [part for part in parts if part is not type(None)]
        return _type_in_words(annotation)
    if origin is Literal:
        return _join_alternatives(parts)
    if origin is list:
        return "list of whole numbers" if parts[0] is int else "list of texts"
    if origin is dict:
        return "table"
    if issubclass(annotation, Enum):
        return _join_alternatives([word.value for word in annotation])
    return _KINDS[annotation]


def _join_alternatives(words: Sequence[str]) -> str:
    listed = [f"`{word}`" for word in words]
    return f"{', '.join(listed[:-1])} or {listed[-1]}"


def _describe_default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), [], {}):
        return "–"
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _as_sentence(text: str) -> str:
    text = _as_markdown(text.strip())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _as_markdown(text: str) -> str:
    """Return a help text as Markdown, in which only what is between backticks is markup."""
    text = " ".join(text.split()).replace("\\", "\\\\")
    return re.sub(r"([*_<>|\[\]])(?=(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", text)


def _markdown_table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def describe_results() -> str:
    """Describe the parts of a result document, each with a table of its keys."""
    from guestmark.report import schema

    made = schema.make_json_schema(schema.ResultDocument, "")
    parts = {name: made["$defs"][name] for name in schema.list_part_names() if name in made["$defs"]}
    lines: list[str] = []
    for name, part in sorted(parts.items(), key=lambda item: item[0] != schema.ResultDocument.__name__):
        lines += [f"## {name}", "", _as_markdown(part.get("description", "")), ""]
        optional = set(part["properties"]) - set(part.get("required", ()))
        rows = [
            [
                f"`{key}`",
                _json_type(value),
                _as_markdown(value.get("description", "")) + (" (may be absent)" * (key in optional)),
            ]
            for key, value in part["properties"].items()
        ]
        lines += [_markdown_table(["key", "type", "meaning"], rows), ""]
    return "\n".join(lines)


def _json_type(value: dict[str, Any]) -> str:
    """Return the type of a key's value in words."""
    if "$ref" in value:
        name = str(value["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name.endswith(("Part", "Cell", "Run")) else name
    if "anyOf" in value:
        return ", ".join(dict.fromkeys(_json_type(each) for each in value["anyOf"]))
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if value.get("type") == "array":
        inner = value.get("items")
        return f"array of {_json_type(inner)}" if inner else "array"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"object of {_json_type(inner)}" if isinstance(inner, dict) and inner else "object"
    return str(value.get("type", "any"))


PARTS: dict[str, Callable[[], str]] = {
    "results": describe_results,
    "commands": describe_commands,
    "repetition": describe_repetition,
    "platforms": describe_platforms,
    "factors": describe_factors,
    "architectures": describe_architectures,
    "workloads": describe_workloads,
}


def _fill_in_parts(_app: Any, _page: str, source: list[str]) -> None:
    source[0] = MARK.sub(lambda mark: PARTS[mark[1]](), source[0])


def setup(app: Any) -> dict[str, bool]:
    """Register the extension; Sphinx calls this."""
    app.connect("source-read", _fill_in_parts)
    return {"parallel_read_safe": True}
