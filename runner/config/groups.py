"""The groups of the configuration with their options, and every key that an option or a section has."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import get_args

from runner.config.schema import CLUSTERS, Config
from runner.data import DATASETS
from runner.models import MODELS
from runner.optimizers import OPTIMIZERS
from runner.optimizers.schedules import SCHEDULES
from runner.strategies import STRATEGIES
from runner.tasks import TASKS
from runner.tracking import TRACKERS

GROUPS: dict[str, Mapping[str, type]] = {
    "task": TASKS,
    "model": MODELS,
    "data": DATASETS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "parallelism": STRATEGIES,
    "cluster": CLUSTERS,
    "tracking": TRACKERS,
}
"""Group of the configuration -> name of an option -> the dataclass that is its schema."""


def known_keys() -> dict[str, list[str]]:
    """Return every dotted key -> the options ("GROUP=OPTION") that have it; [] if the key does not depend on an option.

    The result includes the keys of sections and of nested sections, and the sections and groups themselves. The key
    ``name`` of an option is left out.
    """
    found: dict[str, list[str]] = {key: [] for key in _keys(Config)}
    for group, options in GROUPS.items():
        for option, schema in options.items():
            for key in _keys(schema):
                if key != "name":
                    found.setdefault(f"{group}.{key}", []).append(f"{group}={option}")
    return found


def group_of(schema: object) -> tuple[str, str] | None:
    """Return the group and the option that have this schema; None for a section or a nested section."""
    options = ((group, name, each) for group, table in GROUPS.items() for name, each in table.items())
    return next(((group, name) for group, name, each in options if each is schema), None)


def optional_sections() -> list[str]:
    """Return the dotted keys of the sections that can be null."""
    found = list(_optional_sections(Config))
    for group, options in GROUPS.items():
        found += [f"{group}.{key}" for schema in options.values() for key in _optional_sections(schema)]
    return list(dict.fromkeys(found))


def _optional_sections(schema: type) -> Iterator[str]:
    for field in dataclasses.fields(schema):
        of_type = get_args(field.type)
        can_be_null = type(None) in of_type
        section = of_type[0] if can_be_null else field.type
        if dataclasses.is_dataclass(section):
            yield from [field.name] if can_be_null else []
            yield from (f"{field.name}.{key}" for key in _optional_sections(section))  # type: ignore[arg-type]


def _keys(schema: type) -> Iterator[str]:
    for field in dataclasses.fields(schema):
        yield field.name
        if dataclasses.is_dataclass(field.type):
            yield from (f"{field.name}.{key}" for key in _keys(field.type))  # type: ignore[arg-type]
