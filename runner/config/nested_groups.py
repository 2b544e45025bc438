"""Groups within a group: choices that only some of its options have, such as ``parallelism/staleness``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class NestedGroup:
    """A folder within a group's folder. name: "GROUP/FOLDER". options: names of its YAML files.

    owners: the group's options that choose one of them in their defaults list -> which.
    """

    name: str
    options: tuple[str, ...]
    owners: dict[str, str]


def nested_groups(conf: Path) -> Iterator[NestedGroup]:
    """The nested groups of a folder of YAML files, by name. Raises OSError and yaml.YAMLError."""
    for folder in sorted(conf.glob("*/*/")):
        options = tuple(sorted(file.stem for file in folder.glob("*.yaml")))
        owners = {
            file.stem: chosen
            for file in sorted(folder.parent.glob("*.yaml"))
            if (chosen := _choice(yaml.safe_load(file.read_text(encoding="utf-8")), folder.name)) is not None
        }
        if options:
            yield NestedGroup(f"{folder.parent.name}/{folder.name}", options, owners)


def _choice(content: Any, name: str) -> str | None:
    """What the defaults list of a YAML file chooses for a group beside it."""
    entries = content.get("defaults", ()) if isinstance(content, dict) else ()
    return next((entry[name] for entry in entries if isinstance(entry, dict) and name in entry), None)
