"""Text that came from somebody else, made fit for a log line or an error message.

Names and messages from a peer, and lines from a worker's log, may hold anything: terminal escape sequences,
right-to-left overrides, a megabyte without a newline. Whatever reaches a terminal goes through here first.
"""

from __future__ import annotations


def printable(text: str, limit: int = 120) -> str:
    """Return ``text`` in one line: at most ``limit`` of its characters, what is not printable escaped."""
    if len(text) <= limit and text.isprintable():
        return text
    cut = text[:limit]
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
    return escaped if len(text) <= limit else f"{escaped}... ({len(text)} characters)"


def printable_lines(text: str, lines: int, width: int = 200) -> list[str]:
    """Return the last ``lines`` lines of ``text``, each through :func:`printable`; tabs become spaces."""
    return [printable(line.expandtabs(4), width) for line in text.splitlines()[-lines:]]


def ascii_only(text: str) -> str:
    """Return ``text`` with everything beyond ASCII escaped, newlines kept.

    One character is then one byte, so a limit in characters is also one in bytes of a message header.
    """
    return text.encode("ascii", "backslashreplace").decode("ascii")
