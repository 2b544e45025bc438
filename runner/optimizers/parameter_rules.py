"""Rules that set the learning rate, schedule or weight decay of variables with certain names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from runner.bounds import NonNegative
from runner.errors import ConfigError
from runner.optimizers.schedules import SCHEDULES, Schedule
from runner.system.schema import LenientRecord, Violation

_NAMED = 8
"""The number of variables that an error message names."""


@dataclass(frozen=True)
class ParameterRule:
    """An entry of ``optimizer.rules``: other settings for the variables whose names match a pattern.

    match: shell pattern of names such as "conv1/bias"; "*" also matches slashes, as in "*/bias". lr_factor: multiplies
    the learning rate; 0 keeps the variables at their initial values. weight_decay: the decay of all matching variables,
    also of biases; None for the optimizer's decay, which excludes biases and normalisation parameters.
    schedule: an option of ``schedule`` with its settings, which replaces the schedule of the run for these variables;
    None for the schedule of the run.
    """

    match: str
    lr_factor: NonNegative = 1.0
    weight_decay: NonNegative | None = None
    schedule: Any = None

    def __str__(self) -> str:
        """Return the pattern and the settings that differ from those of other variables."""
        decay = [] if self.weight_decay is None else [f"weight_decay {self.weight_decay:g}"]
        schedule = [] if self.schedule is None else [f"schedule {self.schedule.name}"]
        factor = [] if self.lr_factor == 1.0 else [f"learning rate x {self.lr_factor:g}"]
        return f"{self.match}: {', '.join([*factor, *decay, *schedule]) or 'as other variables'}"


@dataclass(frozen=True)
class InheritingRule(ParameterRule):
    """A rule that uses the optimizer's weight decay. decay: this decay, scaled with the batch for the rule's rate."""

    decay: float = 0.0


_RULE = LenientRecord(ParameterRule, complete=False)


def read_rules(plain: Sequence[Any]) -> list[ParameterRule]:
    """Return the rules that ``optimizer.rules`` describes or contains, each with its schedule. Raises ConfigError."""
    found = []
    for number, settings in enumerate(plain):
        if isinstance(settings, ParameterRule):
            found.append(settings)
            continue
        where = f"optimizer.rules[{number}]"
        try:
            rule = _RULE.read(settings, where)
        except Violation as error:
            raise ConfigError(str(error)) from error
        schedule = None if rule.schedule is None else _schedule(rule.schedule, f"{where}.schedule")
        found.append(replace(rule, schedule=schedule))
    return found


def _schedule(settings: Any, where: str) -> Schedule:
    name = settings.get("name") if isinstance(settings, Mapping) else None
    if not isinstance(name, str) or name not in SCHEDULES:
        options = ", ".join(SCHEDULES)
        raise ConfigError(f"{where}: found {settings!r}, expected keys of a schedule, with name one of {options}")
    try:
        return LenientRecord(SCHEDULES[name], complete=False).read(dict(settings), where)
    except Violation as error:
        raise ConfigError(str(error)) from error
    except ConfigError as error:  # from a schedule that checks its settings
        raise ConfigError(f"{where}: {error}") from error


def place_of(rules: Sequence[ParameterRule], name: str) -> int | None:
    """Return the index of the first rule that matches the name of a variable; None if no rule does."""
    return next((place for place, rule in enumerate(rules) if fnmatchcase(name, rule.match)), None)


def require_used(rules: Sequence[ParameterRule], names: Sequence[str]) -> None:
    """Raise ConfigError unless each rule is the first match of a variable. names: names of the trained variables."""
    used = {place_of(rules, name) for name in names}
    for place, rule in enumerate(rules):
        if place not in used:
            where = f"optimizer.rules[{place}].match={rule.match!r}"
            if matching := [name for name in names if fnmatchcase(name, rule.match)]:
                raise ConfigError(
                    f"{where}: earlier rules match all variables of this rule, {_listed(matching)}; the first match "
                    "counts, so put this rule before them, or leave it out"
                )
            raise ConfigError(
                f"{where}: no trained variable has this name; expected a pattern, with * and ?, of names such as "
                f"{_listed(names)}"
            )


def _listed(names: Sequence[str]) -> str:
    """Return the first names and the number of omitted names, as text."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
