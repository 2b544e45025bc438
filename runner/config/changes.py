"""The keys of a configuration whose values differ from the defaults of the chosen options."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.config.conf_dir import conf_dir
from runner.config.configuration import to_plain
from runner.config.groups import GROUPS
from runner.config.outcome import defaults_of, filled
from runner.config.schema import Config
from runner.system.redaction import redact


def changes(config: Config) -> list[str]:
    """Return "KEY=VALUE", without secrets, for each key whose value is not a default; values are JSON or bare text.

    Defaults are those of ``config.yaml``. If another option of a group is chosen, the other keys of the group are
    compared with the defaults of that option: "model.name=mlp" stands for all these defaults. Keys of the cluster that
    were filled in when the run started are left out. The YAML files are read directly, because Hydra would compose
    the whole configuration a second time. Raises OSError if a YAML file of the project cannot be read.
    """
    plain = redact(to_plain(config))
    primary: dict[str, Any] = _content(conf_dir() / "config.yaml")
    defaults = filled(primary, defaults_of(Config))
    entries: Any = primary["defaults"]
    options = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    for group, schemas in GROUPS.items():
        name = plain[group]["name"]
        file = conf_dir() / group / f"{name}.yaml"
        section = filled(_content(file) if file.is_file() else {}, defaults_of(schemas[name]))
        defaults[group] = filled(primary.get(group, {}), section) | {"name": options[group]}
    for name in ("filled_in", "device_taken", *(config.cluster.filled_in or ())):
        del plain["cluster"][name]
    return list(_differences(plain, defaults, ""))


def _content(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _differences(values: Mapping[str, Any], defaults: Mapping[str, Any], place: str) -> Iterator[str]:
    for name, value in values.items():
        key, default = f"{place}{name}", defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _differences(value, default, f"{key}.")
        elif name not in defaults or value != default:
            yield f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
