"""How the cards of a run are used: the same for all of them, in every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class CardUse:
    """What processes that open cards are told.

    tf32: whether factors of float32 products and convolutions may be rounded to 10 bits of mantissa. compare_plans:
    whether cuDNN's plans of each convolution are timed and the fastest is taken, which may be another in every process.
    code_folder: where machine code of our sources is kept from run to run, "" for nowhere.
    """

    tf32: bool = False
    compare_plans: bool = False
    code_folder: str = ""

    def to_document(self) -> dict[str, bool | str]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: object) -> CardUse:
        """Read what :meth:`to_document` made; raises ValueError for anything else."""
        expected = {each.name: type(each.default) for each in fields(cls)}
        if not isinstance(document, Mapping) or {key: type(value) for key, value in document.items()} != expected:
            raise ValueError(
                f"use of cards {document!r}: expected 'tf32' and 'compare_plans', booleans, and 'code_folder'"
            )
        return cls(**document)


AS_USUAL = CardUse()
"""Of cards of which nothing was asked."""
