"""Runs in one file, to be handed around: a page for people, and in it the runs themselves for another ledger.

A bundle is an HTML document with one data block that no browser runs: JSON with a schema, a SHA-256 and the runs,
compressed, signed with the key of whoever packed it. Of the caller's environment it holds the variables that decide
how programs run and name nobody; consoles and the host's name are left out unless they are asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from guestmark.core.errors import LedgerError
from guestmark.core.model import LeftOut, Plan, RunState
from guestmark.ledger import codec, signing_key
from guestmark.ledger.environment_variables import without_values
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import Remarks
from guestmark.ledger.validation import MALFORMED, Budget, check, check_said, said_of

SCHEMA = "guestmark-bundle/1"
_SIGNED = b"guestmark-bundle/1\n"  # before what is signed, so that a signature is of nothing else
_OPEN = '<script type="application/vnd.guestmark-bundle+json" id="guestmark-bundle">'
_SHARED = re.compile(
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|LD_BIND_NOW|GLIBC_TUNABLES|MALLOC_[A-Z_]+|OMP_[A-Z_]+|GOMAXPROCS|GOGC"
    r"|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS|PYTHON(HASHSEED|UTF8|OPTIMIZE|MALLOC|DONTWRITEBYTECODE)"
)
_NAMING = ("HOSTNAME", "USER", "LOGNAME")  # variables whose values are taken out of every text


@dataclass(frozen=True, slots=True)
class Packed:
    """A run as it is in a bundle, with what is said of it, and the public key of the bundle's signer, if it has one."""

    run: StoredRun
    said: Remarks
    signer: str = ""


@dataclass(frozen=True, slots=True)
class _Said:
    """What is said of a run, as it is in a bundle."""

    name: str
    notes: tuple[str, ...]
    labels: dict[str, str]
    tags: tuple[str, ...]


def shareable(run: StoredRun, *, host_name: str = "", consoles: bool = False) -> StoredRun:
    """The run without what concerns only its owner: `host_name` (empty: keep it), consoles, most variables' values."""
    variables = run.plan.context.env
    context = without_values(run.plan.context, lambda name: _SHARED.fullmatch(name) is not None)
    trials = run.trials if consoles else tuple(replace(trial, console="") for trial in run.trials)
    found = replace(run, plan=replace(run.plan, context=context), trials=trials)
    words = {host_name, *(str(variables.get(name, "")) for name in _NAMING)} if host_name else set()
    # Words as short as `pc` are in too many others, and everybody's name is nobody's.
    return _without(found, {word for word in words if len(word) > 3 and word != "root"})


def pack(runs: Iterable[Packed], page: str) -> bytes:
    """The bundle of these runs, as the HTML document `page` with the data in it."""
    content = json.dumps(
        [_plain(packed) for packed in runs], ensure_ascii=True, separators=(",", ":")
    ).encode()
    head = {
        "schema": SCHEMA,
        "sha256": hashlib.sha256(content).hexdigest(),
        "key": signing_key.public_key(),
        "signature": signing_key.sign_message(_SIGNED + content),
        "size": len(content),
        "data": base64.b64encode(zlib.compress(content, 9)).decode(),
    }
    block = f"{_OPEN}{json.dumps(head)}</script>\n"
    before, end, after = page.rpartition("</body>")
    return (f"{before}{block}{end}{after}" if end else f"{page}{block}").encode()


def unpack(data: bytes, where: str, budget: Budget | None = None) -> list[Packed]:
    """The runs of a bundle, checked as what comes from outside, within the `budget`.

    Raises `LedgerError` for anything that is not one, is not as it was packed, or cannot have been measured.
    """
    budget = budget or Budget()
    start = data.rfind(_OPEN.encode())
    end = data.find(b"</script>", start)
    if start < 0 or end < 0:
        raise LedgerError(f"{where} is not a bundle", hint="guestmark export --bundle FILE makes one")
    try:
        head = data[start + len(_OPEN) : end]
        budget.take_json(head)
        return _read_all(json.loads(head), where, budget)
    except LedgerError as error:
        raise LedgerError(f"{where} cannot be imported: {error.message}", hint=error.hint) from error
    except MALFORMED as error:
        raise LedgerError(f"{where} is damaged: {_said(error)}", hint="get it anew") from error


def _said(error: Exception) -> str:
    said = said_of(error)
    return said if len(said) < 200 else f"{said[:200]}…"


def _read_all(head: Mapping[str, Any], where: str, budget: Budget) -> list[Packed]:
    schema, digest, size = str(head["schema"]), str(head["sha256"]), int(head["size"])
    if schema != SCHEMA:
        raise LedgerError(
            f"a bundle of another version: {schema[:80]!r}", hint=f"this guestmark reads {SCHEMA}"
        )
    content = budget.inflated(base64.b64decode(head["data"], validate=True))
    if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise ValueError("its checksum does not fit")
    signer = _signer(head, content)
    budget.take_json(content)
    stored = json.loads(content, object_pairs_hook=_without_doubles)
    found = []
    for each in stored:
        budget.check_time()
        found.append(replace(_read(each, budget), signer=signer))
        check(found[-1].run)
    return found


def _signer(head: Mapping[str, Any], content: bytes) -> str:
    """The key that has signed it; empty for bundles of earlier versions. Raises `ValueError` for a wrong signature."""
    if "key" not in head and "signature" not in head:
        return ""
    key = str(head["key"])
    if not signing_key.has_signed(key, _SIGNED + content, str(head["signature"])):
        raise ValueError("its signature does not fit")
    return key


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A reader that takes the first of two equal keys would see another run than one that takes the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _plain(packed: Packed) -> dict[str, Any]:
    run, said = packed.run, packed.said
    return {
        "id": run.id,
        "created_at": run.created_at,
        "seed": str(run.seed),
        "state": run.state.value,
        "plan": codec.to_plain(run.plan),
        "environments": codec.to_plain(run.environments),
        "unusable": codec.to_plain(run.unusable),
        "trials": [
            {"body": body, "console": base64.b64encode(console).decode()}
            for body, console in map(codec.pack_trial, run.trials)
        ],
        "remarks": {
            "name": said.name,
            "notes": list(said.notes),
            "labels": dict(said.labels),
            "tags": list(said.tags),
        },
    }


def _read(stored: Mapping[str, Any], budget: Budget | None = None) -> Packed:
    run_id = str(stored["id"])
    run = StoredRun(
        id=run_id,
        plan=codec.converted(stored["plan"], Plan, f"the plan of run {run_id}"),
        environments=codec.converted(
            stored["environments"], tuple[dict[str, Any], ...], f"the environments of run {run_id}"
        ),
        seed=int(stored["seed"]),
        state=RunState(stored["state"]),
        created_at=float(stored["created_at"]),
        trials=tuple(
            codec.unpack_trial(
                trial["body"], base64.b64decode(trial["console"]), f"a trial of run {run_id}", budget
            )
            for trial in stored["trials"]
        ),
        unusable=codec.converted(stored["unusable"], tuple[LeftOut, ...], f"what run {run_id} left out"),
    )
    said = codec.converted(stored["remarks"], _Said, f"the remarks of run {run_id}")
    check_said(said.name, said.notes, said.labels, said.tags)
    return Packed(run, Remarks(name=said.name, notes=said.notes, labels=said.labels, tags=said.tags))


def _without(run: StoredRun, words: set[str]) -> StoredRun:
    """The run with these words blotted out wherever they stand alone."""
    if not words:
        return run
    words = words - _vocabulary(run.plan)
    if not words:
        return run
    alternatives = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    expression = re.compile(rf'(?<![A-Za-z0-9_-])(?:{alternatives})(?![A-Za-z0-9_-]|":)')
    text = json.dumps(_plain(Packed(run, Remarks())), ensure_ascii=True)
    blotted = _read(json.loads(expression.sub("HOST", text))).run
    consoles = [expression.sub("HOST", trial.console) for trial in run.trials]
    trials = (
        replace(trial, console=console) for trial, console in zip(blotted.trials, consoles, strict=True)
    )
    return replace(blotted, id=run.id, trials=tuple(trials))


def _vocabulary(plan: Plan) -> set[str]:
    """Words that mean something in a plan, so that a host called `disk` does not spoil it."""
    words = {metric.name for metric in plan.metrics}
    for cell in plan.cells:
        words |= {*re.split(r"[\s=/#]", cell.id), cell.workload.name, cell.workload.key, *cell.factors}
    return words
