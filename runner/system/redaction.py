"""Removal of secrets from every record, log and table of a run.

The name of a key determines whether its value is a secret: the keys ``db.password``, ``hub_token``, ``apiKey`` and all
keys below ``credentials`` have secret values. The user and password in an address are secrets under any key. A secret
under a key such as ``note`` is not recognised. The stored configuration keeps secrets, because resumed runs need them.
"""

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ANYWHERE = {"passwords", "passphrase", "secret", "secrets", "credential", "credentials"}
_ENDINGS = ("password", "passwd")  # endings of a word that names a secret, as in ``sslpassword`` and ``PGPASSWORD``
_AT_THE_END = {"token", "pwd", "apikey", "auth", "authorization"}
"""Words that make a key secret if they are its last word: ``hub_token`` is a secret key, ``token_count`` is not."""
_KINDS_OF_KEY = {"api", "access", "private", "secret", "signing", "encryption"}

# The part of an address before its last @. A password may contain / and @. Digits before a / or the end are a port.
_USERINFO = re.compile(r"(?<=://)(?!/)(?:[^\s/:@\"']+:(?!\d+(?:/|$))[^\s\"'<>]*|[^\s\"'<>/?#]*)(?=@)")
_BEARER = re.compile(r"\b(Bearer|Basic) +[^\s,;\"']+")
# Maps and lists have up to four levels of the same brackets.
_MAP, _LIST = r"\{[^{}]*\}", r"\[[^\[\]]*\]"
for _ in range(3):
    _MAP, _LIST = rf"\{{(?:[^{{}}]|{_MAP})*\}}", rf"\[(?:[^\[\]]|{_LIST})*\]"
_VALUE = rf"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|{_MAP}|{_LIST}|[^\s;&\"'(){{}}\[\]]*[^\s;&,:.\"'(){{}}\[\]]"
# Without the look-behind, the time for a long word would grow with the square of its length.
_KEY = r"(?<![\w.\-])(?P<key>[\w.\-]+)(?P<sign>[\"']?"
_ASSIGNED = re.compile(rf"{_KEY} ?= ?)(?P<value>{_VALUE})")
_MAPPED = re.compile(rf"{_KEY}: ?)(?P<value>[^\n]+)")
# A literal is a quoted string, or a word at the end of a line as in YAML and environment files.
_LITERAL = re.compile(
    rf"""{_KEY}[ \t]*[:=][ \t]*)(?P<value>"[^"\n]+"|'[^'\n]+'|[\w./+=-]{{8,}}(?=[ \t]*$))""", re.MULTILINE
)
_PIECE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")


def is_secret(key: str) -> bool:
    """Return whether a key, or one part of a dotted key, names a secret."""
    return any(_is_secret_part(part) for part in key.split("."))


def redact(value: Any, key: str = "") -> Any:
    """Return a copy of JSON-like data with secrets replaced. ``key`` is the key of ``value``. None stays None."""
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
    """Return command-line arguments such as ``key=value``, ``key=a,b`` and ``--key value`` without secrets."""
    shown: list[str] = []
    for override in overrides:
        follows = bool(shown) and shown[-1].startswith("--") and "=" not in shown[-1] and is_secret(shown[-1])
        key, _, value = override.partition("=")
        plain = f"{key}={REDACTED}" if value and is_secret(key) else redact_text(override)
        shown.append(REDACTED if follows else plain)
    return shown


def redact_text(text: str) -> str:
    """Return text without users and passwords in addresses, and without the values of keys that name secrets."""
    text = _BEARER.sub(rf"\1 {REDACTED}", _USERINFO.sub(REDACTED, text))
    return _redact_mapped(_ASSIGNED.sub(_redact_assigned, text))


def redact_code(text: str) -> str:
    """Return source code without literals assigned to the name of a secret, and without user and password in URLs.

    Assignments of other expressions, such as ``token = tokens[0]``, are kept.
    """
    return _LITERAL.sub(_redact_assigned, _USERINFO.sub(REDACTED, text))


def plain_address(address: str) -> str:
    """Return an address without user and password. The result is still a valid address."""
    return redact_text(address).replace(f"{REDACTED}@", "")


class SecretlessFormatter(logging.Formatter):
    """A log formatter that removes secrets with :func:`redact_text`."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


def _is_secret_part(part: str) -> bool:
    words = [word.lower() for word in _WORD.findall(part)]
    if not words:
        return False
    keys = any(kind in _KINDS_OF_KEY and word == "key" for kind, word in itertools.pairwise(words))
    named = not _ANYWHERE.isdisjoint(words) or any(word.endswith(_ENDINGS) for word in words)
    return keys or named or words[-1] in _AT_THE_END


def _redact_assigned(match: re.Match[str]) -> str:
    return f"{match['key']}{match['sign']}{REDACTED}" if is_secret(match["key"]) else match[0]


def _redact_mapped(text: str) -> str:
    """Redact the values in ``key: value``, up to the end of the line, but only the quoted parts of a sentence."""
    parts = []
    while (match := _MAPPED.search(text)) is not None:
        rest = match["value"]
        parts += [text[: match.start()], match["key"], match["sign"]]
        if is_secret(match["key"]):
            is_collection = rest.startswith(("{", "[")) and not rest.startswith(REDACTED)
            spoken = not is_collection and " " in _PIECE.sub("", rest).strip()
            parts.append(_PIECE.sub(REDACTED, rest) if spoken else REDACTED)
        text = text[match.end() if is_secret(match["key"]) else match.start("value") :]
    return "".join([*parts, text])
