"""Packs runs into one file to share: a page for people that also contains the runs themselves for other ledgers.

A bundle is an HTML document with one data block that no browser executes: JSON with a schema, a SHA-256 and the runs,
compressed, and signed with the key of the user who packed it. Of the caller's environment it holds the variables that
decide how programs run and identify nobody; consoles and the host's name are left out unless they are asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from guestmark.core.errors import LedgerError
from guestmark.core.model import LeftOut, Plan, RunState, Trial
from guestmark.ledger import codec, signing_key
from guestmark.ledger.environment_variables import strip_values
from guestmark.ledger.model import StoredRun
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.validation import (
    MALFORMED,
    ReadBudget,
    check_annotations,
    check_run,
    describe_malformed,
)

SCHEMA = "guestmark-bundle/1"
# Signed messages begin with this prefix, so that their signatures fit nothing else.
_SIGNED = b"guestmark-bundle/1\n"
_OPEN = '<script type="application/vnd.guestmark-bundle+json" id="guestmark-bundle">'
_SHARED_VARIABLES = re.compile(
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|LD_BIND_NOW|GLIBC_TUNABLES|MALLOC_[A-Z_]+|OMP_[A-Z_]+|GOMAXPROCS|GOGC"
    r"|OPENBLAS_NUM_THREADS|MKL_NUM_THREADS|PYTHON(HASHSEED|UTF8|OPTIMIZE|MALLOC|DONTWRITEBYTECODE)"
)
# The values of these variables are removed from every text.
_NAMING_VARIABLES = ("HOSTNAME", "USER", "LOGNAME")


@dataclass(frozen=True, slots=True)
class PackedRun:
    """A run as it is in a bundle, with its annotations, and the public key of the bundle's signer, if it has one."""

    run: StoredRun
    said: Annotations
    signer: str = ""


@dataclass(frozen=True, slots=True)
class _StoredAnnotations:
    """A run's annotations as they are in a bundle."""

    name: str
    notes: tuple[str, ...]
    labels: dict[str, str]
    tags: tuple[str, ...]


def strip_private_data(run: StoredRun, *, host_name: str = "", consoles: bool = False) -> StoredRun:
    """Return the run without private data: `host_name` (empty: keep it), consoles, values of most variables."""
    variables = run.plan.context.env
    context = strip_values(run.plan.context, lambda name: _SHARED_VARIABLES.fullmatch(name) is not None)
    # The order of a fleet has its machines' addresses, users and variables.
    context = replace(context, fleet=None)
    trials = run.trials if consoles else tuple(replace(trial, console="") for trial in run.trials)
    found = replace(run, plan=replace(run.plan, context=context), trials=trials)
    words: set[str] = set()
    if host_name:
        words = {host_name, *(str(variables.get(name, "")) for name in _NAMING_VARIABLES)}
    # Names as short as `pc` are part of too many words, and `root` identifies nobody.
    return _redact_words(found, {word for word in words if len(word) > 3 and word != "root"})


def pack_runs(runs: Iterable[PackedRun], page: str) -> bytes:
    """Return the bundle of these runs: the HTML document `page` with the data in it."""
    plain = [_make_plain(packed) for packed in runs]
    content = json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode()
    head = {
        "schema": SCHEMA,
        "sha256": hashlib.sha256(content).hexdigest(),
        "key": signing_key.read_public_key(),
        "signature": signing_key.sign_message(_SIGNED + content),
        "size": len(content),
        "data": base64.b64encode(zlib.compress(content, 9)).decode(),
    }
    block = f"{_OPEN}{json.dumps(head)}</script>\n"
    before, end, after = page.rpartition("</body>")
    if not end:
        return f"{page}{block}".encode()
    return f"{before}{block}{end}{after}".encode()


def unpack_runs(data: bytes, where: str, budget: ReadBudget | None = None) -> list[PackedRun]:
    """Return the runs of a bundle, checked as untrusted data, within the `budget`.

    Raises `LedgerError` for anything that is not a bundle, was changed since it was packed, or cannot have been
    measured.
    """
    budget = budget or ReadBudget()
    start = data.rfind(_OPEN.encode())
    end = data.find(b"</script>", start)
    if start < 0 or end < 0:
        raise LedgerError(f"{where} is not a bundle", hint="guestmark export --bundle FILE creates one")
    try:
        head = data[start + len(_OPEN) : end]
        budget.charge_encoded(head)
        return _read_runs(json.loads(head), where, budget)
    except LedgerError as error:
        raise LedgerError(f"{where} cannot be imported: {error.message}", hint=error.hint) from error
    except MALFORMED as error:
        raise LedgerError(
            f"{where} is damaged: {_shorten_reason(error)}", hint="get the bundle again"
        ) from error


def _shorten_reason(error: Exception) -> str:
    said = describe_malformed(error)
    if len(said) < 200:
        return said
    return f"{said[:200]}…"


def _read_runs(head: Mapping[str, Any], where: str, budget: ReadBudget) -> list[PackedRun]:
    schema, digest, size = str(head["schema"]), str(head["sha256"]), int(head["size"])
    if schema != SCHEMA:
        raise LedgerError(
            f"the bundle has another version: {schema[:80]!r}", hint=f"this guestmark reads {SCHEMA}"
        )
    content = budget.inflate(base64.b64decode(head["data"], validate=True))
    if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise ValueError("its checksum does not match")
    signer = _verify_signer(head, content)
    budget.charge_encoded(content)
    stored = json.loads(content, object_pairs_hook=_refuse_duplicate_keys)
    found = []
    for each in stored:
        budget.check_time()
        found.append(replace(_read_run(each, budget), signer=signer))
        check_run(found[-1].run)
    return found


def _verify_signer(head: Mapping[str, Any], content: bytes) -> str:
    """Return the key that signed it; empty for bundles of earlier versions. Raises `ValueError` if it does not fit."""
    if "key" not in head and "signature" not in head:
        return ""
    key = str(head["key"])
    if not signing_key.has_signed(key, _SIGNED + content, str(head["signature"])):
        raise ValueError("its signature does not match")
    return key


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys: a reader that takes the first would see another run than one that takes the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _make_plain(packed: PackedRun) -> dict[str, Any]:
    run, said = packed.run, packed.said
    trials = []
    for body, console in map(codec.pack_trial, run.trials):
        trials.append({"body": body, "console": base64.b64encode(console).decode()})
    return {
        "id": run.id,
        "created_at": run.created_at,
        "seed": str(run.seed),
        "state": run.state.value,
        "plan": codec.to_plain(run.plan),
        "environments": codec.to_plain(run.environments),
        "unusable": codec.to_plain(run.unusable),
        "trials": trials,
        "remarks": {
            "name": said.name,
            "notes": list(said.notes),
            "labels": dict(said.labels),
            "tags": list(said.tags),
        },
    }


def _read_run(stored: Mapping[str, Any], budget: ReadBudget | None = None) -> PackedRun:
    run_id = str(stored["id"])
    run = StoredRun(
        id=run_id,
        plan=codec.convert_plain(stored["plan"], Plan, f"the plan of run {run_id}"),
        environments=codec.convert_plain(
            stored["environments"], tuple[dict[str, Any], ...], f"the environments of run {run_id}"
        ),
        seed=int(stored["seed"]),
        state=RunState(stored["state"]),
        created_at=float(stored["created_at"]),
        trials=tuple(_unpack_trials(stored["trials"], run_id, budget)),
        unusable=codec.convert_plain(stored["unusable"], tuple[LeftOut, ...], f"what run {run_id} left out"),
    )
    said = codec.convert_plain(stored["remarks"], _StoredAnnotations, f"the remarks of run {run_id}")
    check_annotations(said.name, said.notes, said.labels, said.tags)
    return PackedRun(run, Annotations(name=said.name, notes=said.notes, labels=said.labels, tags=said.tags))


def _unpack_trials(
    stored: Iterable[Mapping[str, Any]], run_id: str, budget: ReadBudget | None
) -> Iterator[Trial]:
    for trial in stored:
        body, console = trial["body"], base64.b64decode(trial["console"])
        yield codec.unpack_trial(body, console, f"a trial of run {run_id}", budget)


def _redact_words(run: StoredRun, words: set[str]) -> StoredRun:
    """Return the run with these words replaced wherever they stand alone."""
    if not words:
        return run
    words = words - _list_plan_words(run.plan)
    if not words:
        return run
    alternatives = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    expression = re.compile(rf'(?<![A-Za-z0-9_-])(?:{alternatives})(?![A-Za-z0-9_-]|":)')
    text = json.dumps(_make_plain(PackedRun(run, Annotations())), ensure_ascii=True)
    redacted = _read_run(json.loads(expression.sub("HOST", text))).run
    trials = []
    for trial, original in zip(redacted.trials, run.trials, strict=True):
        trials.append(replace(trial, console=expression.sub("HOST", original.console)))
    return replace(redacted, id=run.id, trials=tuple(trials))


def _list_plan_words(plan: Plan) -> set[str]:
    """Return words that mean something in a plan, so that a host called `disk` does not spoil it."""
    words = {metric.name for metric in plan.metrics}
    for cell in plan.cells:
        words |= {*re.split(r"[\s=/#]", cell.id), cell.workload.name, cell.workload.key, *cell.factors}
    return words
