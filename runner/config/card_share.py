"""Which cards of a machine a job has that runs beside others: the cards are dealt out as the cores are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.kernels.gpu.driver import CardFacts


@dataclass(frozen=True)
class CardShare:
    """The share of one job.

    jobs: how many run at the same time. place: of this one among them, from 0; one of ``jobs`` or more begins anew.
    """

    place: int = 0
    jobs: int = 1

    def of(self, cards: Sequence[CardFacts]) -> Sequence[CardFacts]:
        """Its cards: neighbours that no other job has, as evenly as possible; one in turn where there are fewer cards
        than jobs."""
        place = self.place % self.jobs
        each, more = divmod(len(cards), self.jobs)
        if not each:
            return cards[place % len(cards) :][:1] if cards else cards
        first = place * each + min(place, more)
        return cards[first : first + each + (place < more)]

    def text(self, cards: Sequence[CardFacts]) -> str:
        """What the job has of ``cards``, for its log."""
        own = ", ".join(str(card.number) for card in self.of(cards))
        shared = ", shared with other jobs" if len(cards) < self.jobs else ""
        return f"{self.jobs} jobs of the sweep run at a time: this one has card {own} of {len(cards)}{shared}"


ALL_CARDS = CardShare()
"""Of a run that has the machine to itself."""
