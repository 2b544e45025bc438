"""Whether the plugins of a process are those that a record names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.plugin.installing import PLUGINS


@dataclass(frozen=True)
class ChangedPlugin:
    """A plugin whose source is another than it was. before, now: SHA-256 of the sources, in hex."""

    reference: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"plugin {self.reference} was changed: its SHA-256 was {self.before}, and is {self.now}"


def changed_plugins(recorded: Mapping[str, str]) -> Iterator[ChangedPlugin]:
    """Plugins that are in this process with another source than ``recorded``, reference -> SHA-256, says.

    Those that are on one side only are left to whoever names what they bring: another strategy may need them no more.
    """
    for reference, before in recorded.items():
        now = PLUGINS.get(reference, before)
        if now != before:
            yield ChangedPlugin(reference, before, now)
