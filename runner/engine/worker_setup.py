"""What the master tells every worker once, before any plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.engine.card_use import AS_USUAL, CardUse
from runner.engine.links import Link
from runner.engine.meeting import Meeting
from runner.errors import SecurityError


@dataclass(frozen=True)
class WorkerSetup:
    """source: plain description of an input source, or None. check_finite: refuse values that are not finite. link: the
    emulated one to every other process, None where wires are real. cards: number of the card of each worker that
    computes on one, by its name. use: how they are used. meeting: of the cards, None where no library computes on
    all of them together."""

    source: Mapping[str, Any] | None
    check_finite: bool
    link: Link | None
    cards: Mapping[str, int] = field(default_factory=dict)
    use: CardUse = AS_USUAL
    meeting: Meeting | None = None

    def to_document(self) -> dict[str, Any]:
        """Return it as plain data."""
        link = None if self.link is None else self.link.to_document()
        return {
            "source": self.source,
            "check_finite": self.check_finite,
            "link": link,
            "cards": dict(self.cards),
            "use": self.use.to_document(),
            "meeting": None if self.meeting is None else self.meeting.to_document(),
        }

    @classmethod
    def from_document(cls, document: object) -> WorkerSetup:
        """Read what :meth:`to_document` made; raises SecurityError for anything else."""
        if (
            not isinstance(document, Mapping)
            or set(document) != {"source", "check_finite", "link", "cards", "use", "meeting"}
            or not isinstance(document["check_finite"], bool)
            or not isinstance(document["source"], Mapping | None)
            or not _are_cards(document["cards"])
        ):
            raise SecurityError(
                "setup refused: expected a map of 'source', a map or None, 'check_finite', a boolean, 'cards', a map "
                "of workers to numbers from 0, 'use' of these, 'link' and 'meeting'"
            )
        try:
            link = None if document["link"] is None else Link.from_document(document["link"])
            use = CardUse.from_document(document["use"])
            meeting = None if document["meeting"] is None else Meeting.from_document(document["meeting"])
        except ValueError as error:
            raise SecurityError(f"setup refused: {error}") from error
        return cls(document["source"], document["check_finite"], link, document["cards"], use, meeting)


def _are_cards(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and type(card) is int and card >= 0 for name, card in value.items()
    )
