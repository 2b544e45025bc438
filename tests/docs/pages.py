"""The fenced blocks of a page, and the comments that say how tests run them.

An HTML comment on the line before a block is one of

    <!-- run: KEY=VALUE ... -->   these overrides are added to every `runner` command of the block that trains
    <!-- not run: REASON -->
    <!-- file: PATH -->           the block is a file in the folder of the page, not commands
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"(?:<!-- (?P<said>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
KINDS = ("run", "not run", "file")
VERBS = re.compile(
    r"runner (--plugin \S+ )?(explain|data|ui|doctor|list|new|rerun|compare|eval|predict|sweep|sync)(?!\S)"
)


@dataclass(frozen=True)
class Block:
    """One fenced block. kind: one of KINDS. said: the text after the kind in its comment."""

    language: str
    text: str
    kind: str
    said: str

    @property
    def commands(self) -> list[str]:
        """The commands, one for each line; the given overrides are added to those that train."""
        given = " ".join(map(shlex.quote, self.said.split()))
        return [_limited(line, given) for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def _limited(line: str, given: str) -> str:
    command, hash_sign, comment = line.partition("  #")
    trains = command.startswith("runner ") and not VERBS.match(command)
    return f"{command.rstrip()} {given}{hash_sign}{comment}" if given and trains else line


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order; raises ValueError for a comment of an unknown kind."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        kind, _, said = (found["said"] or "run:").partition(":")
        if kind not in KINDS:
            raise ValueError(f"{page}: comment {found['said']!r} before a block; expected one of {', '.join(KINDS)}")
        yield Block(found["language"], found["text"], kind, said.strip())
