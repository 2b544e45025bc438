"""What looks like a secret does not leave the run: no record, log or table shows it.

A value is a secret by the name of its key (``db.password``, ``hub_token``, ``apiKey``, everything below
``credentials``), and user and password of an address are whatever the key. Only the stored configuration keeps
them, because a run is continued from it. A name is all there is to go by: a secret under the key ``note`` is
not recognised.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ANYWHERE = {"passwords", "passphrase", "secret", "secrets", "credential", "credentials"}
_ENDINGS = ("password", "passwd")
"""Of a word: databases know ``sslpassword`` and ``PGPASSWORD``."""
_AT_THE_END = {"token", "pwd", "apikey", "auth", "authorization"}
"""Not so ``token_count``."""
_KINDS_OF_KEY = {"api", "access", "private", "secret", "signing", "encryption"}

# The part before the last @ of an address. A password may hold / and @, but a number before / is a port.
_USERINFO = re.compile(r"(?<=://)(?!/)(?:[^\s/:@\"']+:(?!\d+(?:/|$))[^\s\"'<>]*|[^\s\"'<>/?#]*)(?=@)")
_BEARER = re.compile(r"\b(Bearer|Basic) +[^\s,;\"']+")
_VALUE = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\{[^}]*\}|\[[^\]]*\]|[^\s;&\"'(){}\[\]]*[^\s;&,:.\"'(){}\[\]]"
_KEY = r"(?P<key>[\w.\-]+)(?P<sign>[\"']?"
_ASSIGNED = re.compile(rf"{_KEY} ?= ?)(?P<value>{_VALUE})")
_MAPPED = re.compile(rf"{_KEY}: ?)(?P<value>[^\n]+)")
# In quotes, or a word that ends the line, as in YAML and settings of environments.
_LITERAL = re.compile(
    rf"""{_KEY}[ \t]*[:=][ \t]*)(?P<value>"[^"\n]+"|'[^'\n]+'|[\w./+=-]{{8,}}(?=[ \t]*$))""", re.MULTILINE
)
_PIECE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")


def is_secret(key: str) -> bool:
    """Whether a key, dotted or not, looks like that of a secret or of something inside one."""
    return any(_is_secret_part(part) for part in key.split("."))


def redact(value: Any, key: str = "") -> Any:
    """Copy plain data without its secrets; ``key`` is where it stands. What is not set (None) stays as it is."""
    if value is None:
        return None
    if is_secret(key):
        return REDACTED
    if isinstance(value, Mapping):
        return {name: redact(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_overrides(overrides: Iterable[str]) -> list[str]:
    """Arguments of a command line without secrets: ``key=value``, all values of a swept key, and ``--key value``."""
    shown: list[str] = []
    for override in overrides:
        follows = bool(shown) and shown[-1].startswith("--") and "=" not in shown[-1] and is_secret(shown[-1])
        shown.append(REDACTED if follows else _redact_override(override))
    return shown


def redact_text(text: str) -> str:
    """Text without user and password of addresses and without what follows the key of a secret."""
    text = _BEARER.sub(rf"\1 {REDACTED}", _USERINFO.sub(REDACTED, text))
    return _MAPPED.sub(_redact_mapped, _ASSIGNED.sub(_redact_assigned, text))


def redact_code(text: str) -> str:
    """Text of programs without literals that are given to the name of a secret, and without users in addresses.

    A program that takes a secret from elsewhere (``token = tokens[0]``) stays as it is.
    """
    return _LITERAL.sub(_redact_assigned, _USERINFO.sub(REDACTED, text))


def plain_address(address: str) -> str:
    """An address without user and password, to be opened."""
    return redact_text(address).replace(f"{REDACTED}@", "")


class SecretlessFormatter(logging.Formatter):
    """Formats records of a log as usual, and hides what ``redact_text`` finds in them."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, its traceback included."""
        return redact_text(super().format(record))


def _is_secret_part(part: str) -> bool:
    words = [word.lower() for word in _WORD.findall(part)]
    if not words:
        return False
    keys = any(kind in _KINDS_OF_KEY and word == "key" for kind, word in itertools.pairwise(words))
    named = not _ANYWHERE.isdisjoint(words) or any(word.endswith(_ENDINGS) for word in words)
    return keys or named or words[-1] in _AT_THE_END


def _redact_override(override: str) -> str:
    key, sign, value = override.partition("=")
    if sign and value and is_secret(key):
        return f"{key}={REDACTED}"
    return redact_text(override)


def _redact_assigned(match: re.Match[str]) -> str:
    return f"{match['key']}{match['sign']}{REDACTED}" if is_secret(match["key"]) else match[0]


def _redact_mapped(match: re.Match[str]) -> str:
    """Of ``key: value`` the value; of a sentence about the key only what it quotes, so that it can be understood."""
    rest = match["value"]
    if not is_secret(match["key"]):
        return f"{match['key']}{match['sign']}{_MAPPED.sub(_redact_mapped, rest)}"
    spoken = " " in _PIECE.sub("", rest).strip()
    return f"{match['key']}{match['sign']}{_PIECE.sub(REDACTED, rest) if spoken else REDACTED}"
