"""What the database holds but must not tell: values sealed under a key that only servers have (H11 J6).

The key is a file. AES-256-GCM seals each value with the words that say what it is, so that one copied into another row does not open.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import ConfigError, Unavailable

KEY_BYTES = 32
NONCE_BYTES = 12
KEY_ID_BYTES = 8
PREFIX = "sealed:"  # of a sealed value in a column of text, beside values that were never sealed


@dataclass(frozen=True)
class Sealed:
    """A sealed value, and which key opens it."""

    key_id: bytes
    nonce: bytes
    body: bytes


@dataclass
class Seal:
    """The key of this server. `shared` says that an operator named it, or that it lies beside the only database it is for: every server
    that may ever read a value has it. One that was made where a server happens to run is gone when that server moves."""

    key_file: Path
    shared: bool = False
    _key: bytes = b""

    def close(self, value: str, what: str) -> Sealed:
        """Seal a value that is `what`."""
        nonce = os.urandom(NONCE_BYTES)
        return Sealed(self._key_id(), nonce, self._cipher().encrypt(nonce, value.encode(), what.encode()))

    def open(self, sealed: Sealed, what: str, *, called: str) -> str:
        """The value of `what`; errors name it as it is `called`."""
        from cryptography.exceptions import InvalidTag

        if sealed.key_id != self._key_id():
            raise Unavailable(f"{called} was sealed with another key", hint="give every server the same secrets_key file")
        try:
            value: bytes = self._cipher().decrypt(sealed.nonce, sealed.body, what.encode())
        except InvalidTag:
            raise Unavailable(f"{called} is damaged", hint="set it again") from None
        return value.decode()

    def close_text(self, value: str, what: str) -> str:
        """The same for a column of text. Without a key that all servers share it stays as it is: another server has to read it."""
        if not self.shared:
            return value
        sealed = self.close(value, what)
        return PREFIX + base64.b64encode(sealed.key_id + sealed.nonce + sealed.body).decode()

    def open_text(self, text: str, what: str, *, called: str) -> str:
        if not text.startswith(PREFIX):
            return text
        raw, nonce_ends = base64.b64decode(text.removeprefix(PREFIX)), KEY_ID_BYTES + NONCE_BYTES
        return self.open(Sealed(raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES:nonce_ends], raw[nonce_ends:]), what, called=called)

    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 30 ms that a server without secrets does not spend

        return AESGCM(self._load())

    def _key_id(self) -> bytes:
        return hashlib.sha256(b"headway secrets key" + self._load()).digest()[:KEY_ID_BYTES]

    def _load(self) -> bytes:
        """The key; made at the first use. Two servers that make it at once end up with one."""
        if self._key:
            return self._key
        try:
            self.key_file.parent.mkdir(parents=True, exist_ok=True)
            part = self.key_file.with_name(f"{self.key_file.name}.{os.getpid()}")
            if not self.key_file.exists():
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(os.urandom(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(part, self.key_file)  # whoever comes second finds the first one's
                except FileExistsError:
                    pass
                finally:
                    part.unlink()
            key = self.key_file.read_bytes()
        except OSError as error:
            raise ConfigError(f"the secrets key {self.key_file} cannot be read: {error.strerror}", hint="set secrets_key") from None
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the secrets key {self.key_file} has {len(key)} bytes", hint=f"exactly {KEY_BYTES} random bytes")
        self._key = key
        return key
