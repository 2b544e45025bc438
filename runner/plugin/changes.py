"""Whether the plugins of a process are those that a record names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.plugin.installing import PLUGINS


@dataclass(frozen=True)
class ChangedPlugin:
    """A plugin whose source is another than it was. before, now: SHA-256 of the sources, in hex.

    given_as: where it is found now.
    """

    reference: str
    before: str
    now: str
    given_as: str

    def __str__(self) -> str:
        place = "" if self.given_as == self.reference else f" (now {self.given_as})"
        return f"plugin {self.reference}{place} was changed: its SHA-256 was {self.before}, and is {self.now}"


def changed_plugins(recorded: Mapping[str, str]) -> Iterator[ChangedPlugin]:
    """Plugins that are in this process with another source than ``recorded``, reference -> SHA-256, says.

    A file of the same name in another folder is taken for the same plugin. Those that are on one side only are left to
    whoever names what they bring, as another strategy may need them no more; :func:`plugin_notes` tells them.
    """
    for reference, before in recorded.items():
        given_as = _given_as(reference, before, recorded)
        if given_as is not None and PLUGINS[given_as] != before:
            yield ChangedPlugin(reference, before, PLUGINS[given_as], given_as)


def plugin_notes(recorded: Mapping[str, str] | None) -> Iterator[str]:
    """What a user should know of the plugins of this process, which are not changed but others than ``recorded``.

    recorded: None where it is not known which there were.
    """
    if recorded is None:
        if PLUGINS:
            yield f"the run did not keep which plugins it had: not compared with {', '.join(PLUGINS)}"
        return
    known = {_given_as(reference, before, recorded): reference for reference, before in recorded.items()}
    for reference, before in recorded.items():
        given_as = _given_as(reference, before, recorded)
        if given_as is None:
            yield f"plugin {reference}, which the run had, is not given: what it brings is not there now"
        elif given_as != reference:
            yield f"plugin {reference} is now {given_as}"
    for reference in PLUGINS:
        if reference not in known:
            yield f"plugin {reference} is given, which the run did not have"


def _given_as(reference: str, sha256: str, recorded: Mapping[str, str]) -> str | None:
    """Under which reference this process has a plugin: its own, or a new one of that source, or of that file name."""
    if reference in PLUGINS:
        return reference
    new = [other for other in PLUGINS if other not in recorded]
    same = [other for other in new if PLUGINS[other] == sha256]
    moved = [other for other in new if reference.endswith(".py") and Path(other).name == Path(reference).name]
    return next(iter([*same, *moved]), None)
