"""Values that look like secrets, hidden in what a run records of its command line and of its code."""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "[redacted]"

_NAME = r"(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|credentials?)"
_SECRET_KEY = re.compile(rf"(?:^|[._+~-]){_NAME}$", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
# A key and a literal: in quotes, or a word that ends the line, as in YAML and settings of environments.
_ASSIGNED = re.compile(
    rf"""((?:\b|_){_NAME}["']?[ \t]*[:=][ \t]*)(?:"[^"\n]+"|'[^'\n]+'|[\w./+=-]{{8,}}(?=[ \t]*$))""",
    re.IGNORECASE | re.MULTILINE,
)


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command without the values of ``KEY=SECRET``, ``--KEY SECRET`` and of users in addresses."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if equals and _SECRET_KEY.search(name):
            shown.append(f"{name}={REDACTED}")
        elif shown and shown[-1].startswith("--") and _SECRET_KEY.search(shown[-1]):
            shown.append(REDACTED)
        else:
            shown.append(_USERINFO.sub(REDACTED, argument))
    return shown


def redacted_text(text: str) -> str:
    """Text of programs and settings without literals that are given to a name of a secret, and without such users."""
    return _USERINFO.sub(REDACTED, _ASSIGNED.sub(rf"\1{REDACTED}", text))
