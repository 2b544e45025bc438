"""The folder of the configuration's YAML files, and the nested groups in it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runner.errors import ConfigError, ResourceError

TABLES = "table"  # the folder of tables among the YAML files, which is not a group


def conf_dir() -> Path:
    """Return the folder ``conf``, which is inside an installed package but next to the package in a checkout.

    Raises ResourceError if neither exists, which means that the installation is broken.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "conf", package.parent / "conf")
    for candidate in candidates:
        if (candidate / "config.yaml").is_file():
            return candidate
    places = " and ".join(str(candidate) for candidate in candidates)
    raise ResourceError(f"no configuration files at {places}: reinstall runner-dataflow")


def yaml_folders(own: Path | None) -> list[Path]:
    """Return the folder of the project's YAML files and, unless it is None, the user's folder ``own``.

    Raises ConfigError if the user's folder does not exist.
    """
    if own is None:
        return [conf_dir()]
    if not own.is_dir():
        raise ConfigError(f"--config-dir {own}: no such directory")
    return [conf_dir(), own.absolute()]


@dataclass(frozen=True)
class NestedGroup:
    """A group inside another group, which only some options of the outer group use, such as ``parallelism/staleness``.

    name: "GROUP/FOLDER". options: names of its YAML files. owners: option of the outer group -> option of this group
    that the defaults list of the outer option chooses.
    """

    name: str
    options: tuple[str, ...]
    owners: dict[str, str]


def nested_groups(conf: Path) -> Iterator[NestedGroup]:
    """Yield the nested groups of a folder of YAML files, sorted by name. Raises OSError or yaml.YAMLError."""
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
    """Return the option of group ``name`` that the defaults list of a YAML file chooses; None if there is none."""
    entries = content.get("defaults", ()) if isinstance(content, dict) else ()
    return next((entry[name] for entry in entries if isinstance(entry, dict) and name in entry), None)
