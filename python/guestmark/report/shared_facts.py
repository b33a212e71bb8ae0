"""Facts that the trials of a cell share, written once in a result document, and a reader of all its versions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "guestmark-result/2"
_WITHOUT_SHARED = "guestmark-result/1"  # every trial has all of its facts
_Trial = dict[str, Any]


def split_shared(trials: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[_Trial]]:
    """Return the common part of the trials' attestations and command lines, and the trials without it.

    In a common command line null stands for a word that differs; in a trial it stands for an attestation or command
    line that the trial lacks. Command lines of different lengths have no common one.
    """
    attestations = [trial["attestation"] for trial in trials if trial["attestation"]]
    command_lines = [trial["command_line"] for trial in trials if trial["command_line"]]
    members, words = _find_common_members(attestations), _find_common_words(command_lines)
    own = []
    for trial in trials:
        attestation, command_line = trial["attestation"], trial["command_line"]
        part = {**trial, "attestation": None, "command_line": None}
        if attestation:
            part["attestation"] = _select_own_members(attestation, members)
        if command_line:
            part["command_line"] = _select_own_words(command_line, words)
        own.append(part)
    return {"attestation": members, "command_line": words}, own


def restore_shared(document: dict[str, Any]) -> dict[str, Any]:
    """Return a result document with all facts in each trial, as in version 1; version 1 is returned unchanged.

    Raises `ValueError` for another document.
    """
    schema = document.get("schema")
    if schema == _WITHOUT_SHARED:
        return document
    if schema != SCHEMA:
        raise ValueError(f"{schema!r} is not the schema of a result document")
    restored = {**document, "schema": _WITHOUT_SHARED}
    for name in ("cells", "null_cells"):
        restored[name] = [_restore_shared_facts(cell) for cell in document[name]]
    return restored


def _restore_shared_facts(cell: Mapping[str, Any]) -> dict[str, Any]:
    members, words = cell["shared"]["attestation"], cell["shared"]["command_line"]
    trials = []
    for trial in cell["trials"]:
        attestation, command_line = trial["attestation"], trial["command_line"]
        whole: _Trial = {**trial, "attestation": {}, "command_line": []}
        if attestation is not None:
            whole["attestation"] = _merge_members(members, attestation)
        if command_line is not None:
            whole["command_line"] = _merge_words(words, command_line)
        trials.append(whole)
    restored = {**cell, "trials": trials}
    del restored["shared"]
    return restored


def _is_same_json(one: Any, other: Any) -> bool:
    """Return whether both are the same JSON, for which 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _find_common_members(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    common: dict[str, Any] = {}
    for key in objects[0] if objects else ():
        if not all(key in each for each in objects):
            continue
        values = [each[key] for each in objects]
        if all(_is_same_json(values[0], value) for value in values):
            common[key] = values[0]
        elif all(isinstance(value, dict) for value in values) and (inner := _find_common_members(values)):
            common[key] = inner
    return common


def _select_own_members(members: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are missing in `common`."""
    own = {}
    for key, value in members.items():
        if key not in common:
            own[key] = value
        elif not _is_same_json(value, common[key]):
            # Only objects are in `common` without being the same: they share a part of their members.
            own[key] = _select_own_members(value, common[key])
    return own


def _merge_members(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**common, **own}
    for key in common.keys() & own.keys():
        merged[key] = _merge_members(common[key], own[key])
    return merged


def _find_common_words(lines: Sequence[Sequence[str]]) -> list[str | None]:
    if len({len(line) for line in lines}) != 1:
        return []
    common: list[str | None] = []
    for words in zip(*lines, strict=True):
        common.append(words[0] if len(set(words)) == 1 else None)
    return common


def _select_own_words(line: Sequence[str], common: Sequence[str | None]) -> list[str]:
    if not common:
        return list(line)
    return [word for word, shared in zip(line, common, strict=True) if shared is None]


def _merge_words(common: Sequence[str | None], own: Sequence[str]) -> list[str]:
    if not common:
        return list(own)
    remaining = iter(own)
    words = []
    for shared in common:
        words.append(next(remaining) if shared is None else shared)
    return words
