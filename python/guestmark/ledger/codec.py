"""Exact conversion of plans and trials to stored text and back.

The text is JSON in pure ASCII: strings that are not valid Unicode (a file name or an environment variable with a stray
byte) are stored as escaped surrogates, which neither msgspec's own JSON nor a database's text type would accept. NaN
and the infinities keep Python's notation: raw values are never altered.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from guestmark.core.cause import classify_old_reason
from guestmark.core.errors import LedgerError
from guestmark.core.findings import Facts
from guestmark.core.model import Plan, Trial, TrialStatus
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.redaction import redact_text, redact_values, redact_words
from guestmark.ledger.validation import ReadBudget

T = TypeVar("T")
# In bytes; consoles are cut long before that when they are recorded.
_LARGEST_CONSOLE = 256 << 20
# The key of a trial's facts, since version 0.1.
_FACTS = "attestation"


def _encode_other(value: Any) -> Any:
    """Convert a value msgspec cannot encode: NumPy scalars and arrays, paths; anything else becomes text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Facts):
        return value.kept
    return str(value)


def _decode_other(kind: type, value: Any) -> Any:
    if kind is PlatformSpec:
        return PlatformSpec.read(value)
    if kind is Facts:
        if not isinstance(value, dict):
            raise TypeError(f"the recorded facts are not an object: {value!r:.40}")
        return Facts(value)
    raise NotImplementedError(kind)


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists, strings, numbers, booleans and None; dataclasses become dicts."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other)
    if isinstance(value, Plan):
        plain["context"] = to_plain(value.context.to_stored())
    return plain


def dump_json(value: Any) -> str:
    """Return the stored text of a plan, a trial or any mapping."""
    return json.dumps(to_plain(value), ensure_ascii=True, separators=(",", ":"))


def load_json(text: str, kind: type[T], what: str, budget: ReadBudget | None = None) -> T:
    """Return the object of type `kind` that `dump_json` wrote. Raises `LedgerError` naming `what` for damaged text.

    The cost is charged to the `budget`, which untrusted data has.
    """
    return convert_plain(_parse_json(text, what, budget), kind, what)


def _parse_json(text: str, what: str, budget: ReadBudget | None) -> Any:
    # A column of SQLite holds values of any type.
    if not isinstance(text, str):
        raise _make_unreadable_error(what, TypeError("it is not text"))
    if budget is not None:
        budget.charge_encoded(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _make_unreadable_error(what, error) from error


def convert_plain(stored: Any, kind: type[T], what: str) -> T:
    """Return the object of type `kind` that is stored as builtin types. Raises `LedgerError` naming `what`."""
    try:
        return msgspec.convert(stored, kind, dec_hook=_decode_other)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise _make_unreadable_error(what, error) from error


def _make_unreadable_error(what: str, error: Exception) -> LedgerError:
    return LedgerError(
        f"{what} in the ledger cannot be read: {error}",
        hint="it is damaged or from another version of guestmark; other runs are not affected",
    )


def pack_console(console: str) -> bytes:
    """Compress a console, whatever characters it holds: consoles are long and repetitive."""
    if not console:
        return b""
    return zlib.compress(console.encode("utf-8", "surrogatepass"), 6)


def unpack_console(stored: bytes, budget: ReadBudget | None = None) -> str:
    """Return the console that `pack_console` compressed; a note replaces a damaged one."""
    if not stored:
        return ""
    try:
        return (budget or ReadBudget(_LARGEST_CONSOLE)).inflate(stored).decode("utf-8", "surrogatepass")
    except (zlib.error, ValueError, TypeError) as error:
        return f"[console damaged in the ledger: {error}]"


def pack_trial(trial: Trial) -> tuple[str, bytes]:
    """Return the stored body (everything but the console) and console of a trial; its facts hold no known secret."""
    body = to_plain(replace(trial, console=""))
    body[_FACTS] = redact_values(body.pop("facts"))
    return dump_json(body), pack_console(trial.console)


def make_trial_row(trial: Trial) -> dict[str, Any]:
    """Return the columns of a trial's row but for its run; known secrets are redacted in what programs printed."""
    trial = replace(
        trial,
        reason=redact_text(trial.reason),
        console=redact_text(trial.console),
        warnings=tuple(map(redact_text, trial.warnings)),
        command_line=tuple(redact_words(trial.command_line)),
    )
    body, console = pack_trial(trial)
    return {
        "block": trial.block,
        "cell_id": trial.cell_id,
        "position": trial.order,
        "status": trial.status.value,
        "started_at": float(trial.started_at),
        "duration_s": float(trial.duration_s),
        "body": body,
        "console": console,
    }


def unpack_trial(body: str, console: bytes, what: str, budget: ReadBudget | None = None) -> Trial:
    """Return the trial that `pack_trial` packed."""
    stored = load_json(body, dict[str, Any], what, budget)
    trial = convert_plain({**stored, "facts": stored.get(_FACTS, {})}, Trial, what)
    if trial.cause is None and trial.status is not TrialStatus.OK:
        trial = replace(trial, cause=classify_old_reason(trial.reason))
    return replace(trial, console=unpack_console(console, budget))
