"""Cards for the jobs of a sweep that run at the same time: each has a place among them, and each place its cards.

A place is held by a lock as long as its job runs, so that the next job has the cards of the one that ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.config.card_share import ALL_CARDS, CardShare
from runner.config.devices import Look
from runner.config.schema import LocalCluster
from runner.engine.device import GPU
from runner.sweep.locks import place_lock


@contextmanager
def card_share(sweep_dir: Path, at_once: int, look: Look, *, had: Sequence[int] = ()) -> Iterator[CardShare]:
    """Hold a share of the cards, while others of the ``at_once`` jobs hold theirs.

    had: cards of a run that goes on with them; the place they belong to is taken if it is free, so that no other job
    is dealt them.
    """
    if at_once == 1:
        yield ALL_CARDS
        return
    wanted = _place_of(had, at_once, look) if had else 0
    with place_lock(sweep_dir, wanted) as place:
        yield CardShare(place, at_once)


def dealt_text(asked: LocalCluster, taken: LocalCluster, share: CardShare, look: Look) -> str:
    """What a job was dealt, in words; "" where it has no card, named its cards or has the machine to itself."""
    if share == ALL_CARDS or asked.cards is not None or taken.device_taken != GPU:
        return ""
    return share.text(look().cards)


def _place_of(had: Sequence[int], at_once: int, look: Look) -> int:
    """The first place with such a card, 0 where there is none."""
    cards = look().cards
    shares = (CardShare(place, at_once).of(cards) for place in range(at_once))
    return next((place for place, own in enumerate(shares) if {card.number for card in own} & set(had)), 0)
