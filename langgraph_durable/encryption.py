"""Encryption at rest: keys, and the form of what is sealed. AES-256-GCM by `cryptography`.

    enc1:<id of the key>:<base64 of nonce and ciphertext>     sealed: each time another text
    enc1:digest:<base64>                                      blinded: the same text each time

The first key seals and each of them opens, so keys are rotated without a stop. What is sealed
is bound to its place (a table's column): put elsewhere it doesn't open. Digests are blinded
(AES-SIV), because they are looked up: equal ones stay equal, and without the key nobody can
try which small value has a digest.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

from langgraph_durable.errors import EncryptionError

KEYS_VARIABLE = "LANGGRAPH_DURABLE_ENCRYPTION_KEYS"
MARK = "enc1:"
BLIND = f"{MARK}digest:"
KEY_BYTES = 32
NONCE_BYTES = 12
TAG = "+enc1."  # behind the type of a checkpoint's value: `msgpack+enc1.<id of the key>`
CHECKPOINT = "checkpoint"  # the place that LangGraph's values are bound to

_SEALED = re.compile(r"enc1:([0-9a-f]{8}|digest):[A-Za-z0-9+/]+={0,2}")


def new_key() -> str:
    """Return a key: 32 random bytes as URL-safe base64 (Fernet's have the same form)."""
    return urlsafe_b64encode(os.urandom(KEY_BYTES)).decode("ascii")


def keyring(keys: Sequence[str] | None = None) -> Keyring | None:
    """Return the ring of these keys, else of those in the environment; None if there are none.

    Raises:
        EncryptionError: a text is no key, or the `encryption` extra is not installed.
    """
    if keys is None:
        keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    return Keyring(keys) if keys else None


def is_sealed(text: str) -> bool:
    """Whether a stored text has the form of a sealed one."""
    return text.startswith(MARK) and _SEALED.fullmatch(text) is not None


class Keyring:
    """Keys: the first one seals, each of them opens."""

    def __init__(self, keys: Sequence[str]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise EncryptionError(
                "encryption keys are given, but the library is missing: "
                "pip install 'langgraph-durable[encryption]'"
            ) from error
        raw = [_raw(key, n) for n, key in enumerate(keys, start=1)]
        self._ciphers = {_id_of(key): AESGCM(key) for key in raw}
        self.first = _id_of(raw[0])
        self._blind: Any = None

    def __repr__(self) -> str:
        """Name the keys by their ids."""
        return f"Keyring({', '.join(self._ciphers)})"

    def seal(self, text: str, place: str) -> str:
        """Encrypt a text for a place."""
        sealed = self.seal_bytes(text.encode("utf-8"), place)
        return f"{MARK}{self.first}:{b64encode(sealed).decode('ascii')}"

    def open(self, text: str, place: str) -> str:
        """Decrypt what was sealed; a text that isn't sealed is returned as it is.

        Raises:
            EncryptionError: its key is not on the ring, or it was changed or moved.
        """
        if not is_sealed(text):
            return text
        if text.startswith(BLIND):
            return self._unblinded(text, place)
        _, key_id, data = text.split(":", 2)
        return self.open_bytes(key_id, b64decode(data), place).decode("utf-8")

    def seal_bytes(self, data: bytes, place: str) -> bytes:
        """Encrypt bytes under the first key."""
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._ciphers[self.first].encrypt(nonce, data, place.encode())
        return nonce + sealed

    def open_bytes(self, key_id: str, data: bytes, place: str) -> bytes:
        """Decrypt bytes that a key sealed; raises EncryptionError as `open`."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise EncryptionError(
                f"a value of {place} was sealed with the key {key_id}, which is not among the "
                f"encryption keys given ({', '.join(self._ciphers)}). Add it behind the first one: "
                f"Durable(..., encryption_keys=[new, old]) or {KEYS_VARIABLE}=new,old"
            )
        try:
            opened: bytes = cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], place.encode())
        except Exception as error:
            raise EncryptionError(
                f"a sealed value of {place} does not open: it was changed, or moved from another "
                "place. Restore it from a backup."
            ) from error
        return opened

    # --- LangGraph's values ------------------------------------------------------------

    def seal_typed(self, tag: str, data: bytes) -> tuple[str, bytes]:
        """Seal a value of a checkpoint; its type says with which key."""
        return f"{tag}{TAG}{self.first}", self.seal_bytes(data, CHECKPOINT)

    def open_typed(self, tag: str, data: bytes) -> tuple[str, bytes]:
        """Open a value of a checkpoint; one that isn't sealed is returned as it is."""
        plain, sealed, key_id = tag.partition(TAG)
        return (plain, self.open_bytes(key_id, data, CHECKPOINT)) if sealed else (tag, data)

    # --- digests -----------------------------------------------------------------------

    def learn(self, blinding: bytes) -> None:
        """Take the database's key for digests: it stays when the others are rotated."""
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        self._blind = AESSIV(blinding)

    def blind(self, text: str, place: str) -> str:
        """Encrypt a digest so that equal ones stay equal."""
        data: bytes = self._blinder.encrypt(text.encode("utf-8"), [place.encode()])
        return BLIND + b64encode(data).decode("ascii")

    def _unblinded(self, text: str, place: str) -> str:
        data = b64decode(text.removeprefix(BLIND))
        try:
            opened: bytes = self._blinder.decrypt(data, [place.encode()])
        except Exception as error:
            raise EncryptionError(
                f"a digest of {place} does not open: it was changed, or is of another database. "
                "Restore it from a backup."
            ) from error
        return opened.decode("utf-8")

    @property
    def _blinder(self) -> Any:
        if self._blind is None:
            raise EncryptionError("the database was not unlocked: call check_schema() first")
        return self._blind


def _raw(key: str, n: int) -> bytes:
    try:
        raw = urlsafe_b64decode(key.encode("ascii"))
    except (ValueError, AttributeError):
        raw = b""
    if len(raw) != KEY_BYTES:  # the key itself is not shown
        raise EncryptionError(
            f"encryption key {n} is not {KEY_BYTES} bytes in URL-safe base64. "
            "Make one: langgraph-durable encryption key"
        )
    return raw


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"langgraph-durable encryption key:" + key).hexdigest()[:8]
