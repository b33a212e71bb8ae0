"""The user's own key (Ed25519), which marks runs as the user's own.

It is created when first needed and never leaves its file, which only its user can read. Signatures are libsodium's.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import LedgerError
from guestmark.core.home import find_state_directory
from guestmark.core.temporary import scratch_directory

if TYPE_CHECKING:
    from nacl.signing import SigningKey

_SIZE = 32  # bytes of a seed, and of a key
_SIGNATURE = 64  # bytes of a signature


def find_key_file() -> Path:
    """Return the key's file, which need not exist."""
    return find_state_directory() / "signing-key"


def read_public_key() -> str:
    """Return the user's public key in Base64 (44 characters); create a key if there is none."""
    return _encode_base64(bytes(_load_own_key(find_key_file()).verify_key))


def sign_message(message: bytes) -> str:
    """Return the signature of the message by the user's own key, in Base64."""
    return _encode_base64(_load_own_key(find_key_file()).sign(message).signature)


def has_signed(key: str, message: bytes, signature: str) -> bool:
    """Return whether the owner of the public `key` signed the message; False for malformed keys and signatures."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        made = VerifyKey(_decode_base64(key, _SIZE))
        made.verify(message, _decode_base64(signature, _SIGNATURE))
    except (BadSignatureError, ValueError):
        return False
    return True


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_base64(text: str, size: int) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("it is not Base64") from error
    # Base64 has several spellings of the same bytes; only one is accepted, so that a signature cannot be varied.
    if len(found) != size or _encode_base64(found) != text:
        raise ValueError(f"it is not {size} bytes")
    return found


@functools.lru_cache(maxsize=4)
def _load_own_key(file: Path) -> SigningKey:
    """Return the key in the file. If it cannot be stored, it is valid for this process alone."""
    from nacl.signing import SigningKey

    with contextlib.suppress(OSError):
        if not file.exists():
            _create_signing_key(file)
        return SigningKey(_read_seed(file))
    return SigningKey.generate()


def _create_signing_key(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with scratch_directory("key", file.parent) as directory:
        made = directory / file.name
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(secrets.token_bytes(_SIZE))
            # Root in a user's home, as with `sudo -E`: the user has to be able to read the key later.
            if os.geteuid() == 0:
                home = file.parent.stat()
                os.fchown(stream.fileno(), home.st_uid, home.st_gid)
            stream.flush()
            os.fsync(stream.fileno())
        # Another process may be faster; a link never replaces its key.
        with contextlib.suppress(FileExistsError):
            os.link(made, file)


def _read_seed(file: Path) -> bytes:
    """Return the seed. Raises `OSError`, and `LedgerError` for a file that others may have read or written."""
    with file.open("rb") as stream:
        there = os.fstat(stream.fileno())
        found = stream.read(_SIZE + 1)
    # Root reads the key of the user whose home it works in.
    strange = os.geteuid() != 0 and there.st_uid not in {0, os.geteuid()}
    if not stat.S_ISREG(there.st_mode) or there.st_mode & 0o077 or strange:
        raise LedgerError(
            f"the signing key {file} must belong to its user and be readable by nobody else",
            hint=f"chmod 600 {file}; if others may know it, remove it, and sign your runs again: guestmark ledger sign",
        )
    if len(found) != _SIZE:
        raise LedgerError(
            f"the signing key {file} is damaged",
            hint="restore it from a backup; or remove it, and sign your runs again: guestmark ledger sign",
        )
    return found
