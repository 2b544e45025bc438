"""The text of ``runner --help``, made from the schema, the YAML files and the table of verbs."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.config import schema
from runner.config.conf_dir import TABLES, nested_groups

_USAGE = """\
runner trains neural networks in parallel, as configured by YAML files and overrides.

  runner [KEY=VALUE ...]                     train
  runner -m KEY=V1,V2 ...                    sweep: train every combination; seed=1,2,3 repeats each: mean and spread
  runner sweep resume DIR                    finish an interrupted sweep; finished jobs are not repeated
  runner resume=DIR [train.steps=N] [parallelism=NAME]
                                             continue the run in DIR, optionally with another strategy
  runner --supervise KEY=VALUE ...           train; restart after a kill or lack of memory
  runner VERB [...]                          see `runner VERB --help`
"""

_EXAMPLES = """\
Examples:
  runner                                     the default run
  runner model=mlp optimizer.lr=0.01 train.epochs=5
  runner -m optimizer.lr=0.01,0.05 parallelism=single,sync_data
  runner +debug=fast                         a few steps, every value checked; also overfit, profile
  runner -m seed=1,2,3,4 hydra/launcher=joblib hydra.launcher.n_jobs=2     two jobs at a time, each with half the cores
  runner --config-dir my_configs model=mine  with your own YAML files
  runner --plugin mine.py --config-dir conf model=mine    with your own code: see `runner new`
  runner --cfg job optimizer=adam            print the configuration instead of training
  runner --cfg job --package parallelism parallelism=async_data    print the keys of a strategy
  runner --info defaults                     print the files that make up the configuration
  eval "$(runner -sc install=bash)"          complete words in bash or zsh (install=zsh)
  runner -sc install=fish | source           complete words in fish

Hydra's own options: runner --hydra-help
--debug prints the traceback of an error."""

_SECTIONS: dict[str, type] = {
    "": schema.Config,
    "train.": schema.TrainConfig,
    "checkpoint.": schema.CheckpointConfig,
    "adapt.": schema.Adaptation,
    "simulate.": schema.SimulateConfig,
    "debug.": schema.DebugConfig,
    "cluster.": schema.LocalCluster,
    "cluster.stragglers.": schema.StragglersConfig,
}


def help_text(conf: Path, verbs: Mapping[str, str]) -> str:
    """Return the text of ``runner --help``. conf: the folder of YAML files. verbs: name -> description."""
    primary = yaml.safe_load((conf / "config.yaml").read_text(encoding="utf-8"))
    return "\n".join(
        [
            _USAGE,
            "Verbs:",
            *(f"  {name:12} {text}" for name, text in verbs.items()),
            "",
            "Groups, chosen by GROUP=OPTION (* is the default), or added by +GROUP=OPTION if marked with a +:",
            *_group_lines(conf, _chosen(primary)),
            "",
            "Keys, set by KEY=VALUE, with their defaults (all of them: runner --cfg job):",
            *_key_lines(primary),
            "",
            _EXAMPLES,
        ]
    )


def options(conf: Path) -> dict[str, list[str]]:
    """Return folder of ``conf`` (a group) -> names of its YAML files (the options); nested groups are omitted."""
    folders = sorted(folder for folder in conf.iterdir() if folder.is_dir() and folder.name != TABLES)
    found = {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}
    return {group: names for group, names in found.items() if names}


def _chosen(primary: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the default option of each group in config.yaml; None for a group that is empty by default."""
    entries = (entry for entry in primary["defaults"] if isinstance(entry, dict))
    return {group: option for entry in entries for group, option in entry.items()}


def _group_lines(conf: Path, chosen: Mapping[str, str | None]) -> list[str]:
    lines = []
    for group, names in options(conf).items():
        marked = ", ".join(f"{name}*" if name == chosen.get(group) else name for name in names)
        shown = group if group in chosen else f"+{group}"
        lines += textwrap.wrap(marked, 100, initial_indent=f"  {shown:12} ", subsequent_indent=" " * 15)
    for nested in nested_groups(conf):
        marked = ", ".join(f"{name}*" if name in nested.owners.values() else name for name in nested.options)
        lines.append(f"  {nested.name}  {marked}  (of {', '.join(nested.owners)})")
    return lines


def _key_lines(primary: Mapping[str, Any]) -> list[str]:
    lines = []
    for prefix, section in _SECTIONS.items():
        values = primary.get(prefix.rstrip("."), {}) if prefix else primary
        defaults = vars(section())
        for name, text in schema.key_help(section).items():
            shown = yaml.safe_dump(values.get(name, defaults[name])).splitlines()[0]
            lines.append(f"  {prefix + name:24} {shown:9} {text}")
    return lines
