"""The keys of a configuration whose values differ from the defaults of the chosen options."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.config.conf_dir import conf_dir
from runner.config.configuration import to_plain
from runner.config.groups import GROUPS
from runner.config.schema import Config
from runner.system.redaction import redact


def changes(config: Config) -> list[str]:
    """Return "KEY=VALUE", without secrets, for each key whose value is not a default; values are JSON or bare text.

    Defaults are those of ``config.yaml``. If another option of a group is chosen, the other keys of the group are
    compared with the defaults of that option: "model.name=mlp" stands for all these defaults. Keys of the cluster that
    were filled in when the run started are left out. The YAML files are read directly, because a composition by Hydra
    takes thirty times as long. Raises OSError if a YAML file of the project cannot be read.
    """
    plain = redact(to_plain(config))
    primary: dict[str, Any] = _content(conf_dir() / "config.yaml")
    defaults: dict[str, Any] = _merged(_defaults(Config), primary)
    entries: Any = primary["defaults"]
    options = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    for group, schemas in GROUPS.items():
        name = plain[group]["name"]
        file = conf_dir() / group / f"{name}.yaml"
        section = _merged(_defaults(schemas[name]), _content(file) if file.is_file() else {})
        defaults[group] = _merged(section, primary.get(group, {})) | {"name": options[group]}
    for name in ("filled_in", "device_taken", *(config.cluster.filled_in or ())):
        del plain["cluster"][name]
    return list(_differences(plain, defaults, ""))


def _content(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _defaults(schema: type) -> dict[str, Any]:
    """Return the defaults of a dataclass as plain values; fields without a default are left out."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
            found[field.name] = (
                dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
            )
        elif field.default is not dataclasses.MISSING:
            found[field.name] = field.default
    return found


def _merged(defaults: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``defaults``, with the values of ``changed`` for the keys that are in both."""
    return {
        name: _merged(value, changed[name])
        if isinstance(value, dict) and isinstance(changed.get(name), dict)
        else changed.get(name, value)
        for name, value in defaults.items()
    }


def _differences(values: Mapping[str, Any], defaults: Mapping[str, Any], place: str) -> Iterator[str]:
    for name, value in values.items():
        key, default = f"{place}{name}", defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _differences(value, default, f"{key}.")
        elif name not in defaults or value != default:
            yield f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
