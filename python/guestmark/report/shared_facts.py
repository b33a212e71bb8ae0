"""What the trials of a cell have in common, written once in a result document; and documents read, of every version."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SCHEMA = "guestmark-result/2"
_WHOLE = "guestmark-result/1"  # in which every trial has all of it


def split_shared(trials: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The common part of the trials' attestations and command lines, and the trials without it.

    Null stands in a common command line for a word that differs, and in a trial for what it has none of. Command lines
    of different lengths have no common one.
    """
    common: dict[str, Any] = _common_members([found for trial in trials if (found := trial["attestation"])])
    words = _common_words([found for trial in trials if (found := trial["command_line"])])
    return {"attestation": common, "command_line": words}, [
        {
            **trial,
            "attestation": _own_members(found, common) if (found := trial["attestation"]) else None,
            "command_line": _own_words(line, words) if (line := trial["command_line"]) else None,
        }
        for trial in trials
    ]


def restore_shared(document: dict[str, Any]) -> dict[str, Any]:
    """A result document with everything in each trial, as version 1 had it; one of version 1 as it is.

    Raises `ValueError` for another document.
    """
    schema = document.get("schema")
    if schema == _WHOLE:
        return document
    if schema != SCHEMA:
        raise ValueError(f"{schema!r} is not the schema of a result document")
    cells = {name: [_restore_cell(cell) for cell in document[name]] for name in ("cells", "null_cells")}
    return {**document, "schema": _WHOLE, **cells}


def _restore_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    shared = cell["shared"]
    trials = [
        {
            **trial,
            "attestation": {}
            if (own := trial["attestation"]) is None
            else _merge_members(shared["attestation"], own),
            "command_line": []
            if (line := trial["command_line"]) is None
            else _merge_words(shared["command_line"], line),
        }
        for trial in cell["trials"]
    ]
    return {**{key: value for key, value in cell.items() if key != "shared"}, "trials": trials}


def _is_same_json(one: Any, other: Any) -> bool:
    """Whether both are the same JSON, for which 1, 1.0 and true are not the same."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _common_members(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    common: dict[str, Any] = {}
    for key in found[0] if found else ():
        if not all(key in each for each in found):
            continue
        first, *others = (each[key] for each in found)
        if all(_is_same_json(first, other) for other in others):
            common[key] = first
        elif all(isinstance(each, dict) for each in (first, *others)) and (
            inner := _common_members([first, *others])
        ):
            common[key] = inner
    return common


def _own_members(found: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """What is missing in `common`: objects that are partly in it differ in their members."""
    return {
        key: _own_members(value, common[key]) if key in common else value
        for key, value in found.items()
        if key not in common or not _is_same_json(value, common[key])
    }


def _merge_members(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**common, **own}
    for key in common.keys() & own.keys():
        merged[key] = _merge_members(common[key], own[key])
    return merged


def _common_words(lines: Sequence[Sequence[str]]) -> list[str | None]:
    if len({len(line) for line in lines}) != 1:
        return []
    return [words[0] if len(set(words)) == 1 else None for words in zip(*lines, strict=True)]


def _own_words(line: Sequence[str], common: Sequence[str | None]) -> list[str]:
    if not common:
        return list(line)
    return [word for word, shared in zip(line, common, strict=True) if shared is None]


def _merge_words(common: Sequence[str | None], own: Sequence[str]) -> list[str]:
    if not common:
        return list(own)
    words: Iterator[str] = iter(own)
    return [next(words) if shared is None else shared for shared in common]
