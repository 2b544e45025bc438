"""The section ``adapt``: adaptation of the trained network to a target domain."""

from dataclasses import dataclass, field
from typing import Any

from runner.bounds import Count
from runner.errors import ConfigError

ADABN, CORAL, ADABN_CORAL = METHODS = ("adabn", "coral", "adabn_coral")
"""Statistics of batch normalization from the target (Li et al. 2016); a classifier of features aligned with the target
(Sun, Feng and Saenko 2016); both, with the features of the adapted network."""


@dataclass
class Adaptation:
    """Adaptation to a target domain after the last update, without its labels; nothing is done without ``data``."""

    data: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "dataset of the target: name=NAME and its keys; {}: no adaptation"}
    )
    methods: list[str] = field(
        default_factory=lambda: [ADABN], metadata={"help": f"methods, each on its own: {', '.join(METHODS)}"}
    )
    batch_size: Count = field(default=64, metadata={"help": "examples per batch of the target"})
    batches: Count | None = field(
        default=None, metadata={"help": "batches of the target's train split for adabn; null: all whole ones"}
    )
    curve: list[Count] = field(
        default_factory=list, metadata={"help": "numbers of batches after which adabn is scored too"}
    )

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) < len(self.methods) or not set(self.methods) <= set(METHODS):
            raise ConfigError(f"adapt.methods={self.methods}: expected one or more of {', '.join(METHODS)}")
        if self.curve and set(self.methods) == {CORAL}:
            raise ConfigError(f"adapt.curve={self.curve} with adapt.methods=[{CORAL}]: expected [], or {ADABN}")
