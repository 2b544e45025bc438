"""The verb ``eval``: score a trained network on the dataset that it was trained with or on another dataset."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.commands import stored_network
from runner.commands.stored_network import StoredNetwork
from runner.config.check import check
from runner.config.configuration import from_plain, to_plain
from runner.config.hydra_app import overridden
from runner.config.monitor import keeps_best
from runner.config.schema import Config
from runner.data.dataset import Facts
from runner.errors import ConfigError
from runner.system.console import add_yaml_options, verb_parser
from runner.system.machine import usable_cores
from runner.system.redaction import redact
from runner.system.text import aligned, json_text, significant
from runner.tasks.base import Task

if TYPE_CHECKING:
    from runner.training.evaluation import Scores
    from runner.training.inference import OneDevice

_ALLOWED = ("data", "train.eval_batch_size")
_REFUSAL = (
    "the stored configuration is evaluated; only data=NAME, data.KEY, train.eval_batch_size, cluster.device, "
    "cluster.gpus and cluster.tf32 may be given, and --config-dir DIR for your own NAME"
)

_EXAMPLE = """\
examples:
  runner eval outputs/2026-01-31/12-00-00
  runner eval outputs/2026-01-31/12-00-00 data=fashion_mnist --which newest
  runner eval outputs/2026-01-31/12-00-00 cluster.device=cpu
  runner eval outputs/2026-01-31/12-00-00 --config-dir my_configs data=mine"""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser(
        "eval",
        "Score a trained network on the test split, and on the validation split if there is one. "
        f"The evaluation uses one device. Inputs are normalised as in training.\n{stored_network.DEVICE_HELP}.",
        _EXAMPLE,
    )
    stored_network.add_arguments(parser)
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="data=NAME, data.KEY, train.eval_batch_size, cluster.device, cluster.gpus or cluster.tf32",
    )
    add_yaml_options(parser, ", for data=NAME")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file for the results (default: in the run directory, one for each dataset and set of overrides)",
    )
    parser.add_argument("--ten-views", action="store_true", help="average the probabilities of 10 views of each image")
    options = parser.parse_intermixed_args(arguments)
    network = stored_network.network_in(options.checkpoint, options.which)
    config, results = evaluated(network, options.overrides, options.config_dir, ten_views=options.ten_views)
    # The file name depends on the folder of YAML files too, because two folders can define one option differently.
    words = [
        *options.overrides,
        *(["--ten-views"] if options.ten_views else []),
        *([str(options.config_dir.absolute())] if options.config_dir else []),
    ]
    path = options.output or network.run_dir / _file_name(network, config, words)
    stored_network.write_output(path, json_text(results).encode())
    print(_table(results, path))
    return 0


def evaluated(
    network: StoredNetwork, given: Sequence[str], config_dir: Path | None = None, *, ten_views: bool = False
) -> tuple[Config, dict[str, Any]]:
    """Score a network; return the configuration with the overrides ``given``, and the results as plain data.

    Raises ConfigError for an override that is not allowed or a dataset that does not fit the network, and also the
    errors of :func:`~runner.training.inference.score`.
    """
    device_overrides, overrides = stored_network.split_device(given)
    config = with_other_data(network.config, overrides, config_dir, _ALLOWED, _REFUSAL)
    device_config = stored_network.with_device(replace(network.config, train=config.train), device_overrides)
    config.data.require_present()
    from runner.training.inference import one_device, score, score_views

    device = one_device(device_config, usable_cores())
    scored = (score_views if ten_views else score)(device, network.checkpoint, config.data, network.normalisation())
    return config, _results(network, config, device, scored)


def with_other_data(
    stored: Config, overrides: Sequence[str], config_dir: Path | None, allowed: Sequence[str], refusal: str
) -> Config:
    """Return the stored configuration with ``overrides``; raise ConfigError if the dataset does not fit the network.

    allowed, refusal: as in :func:`~runner.config.hydra_app.overridden`.
    """
    config = from_plain(overridden(stored, overrides, allowed, refusal, config_dir=config_dir))
    # The other dataset changes neither the metric of training nor the checkpoints that training kept.
    checkpoint = replace(config.checkpoint, keep_best=keeps_best(stored))
    check(replace(config, train=replace(config.train, monitor=None), checkpoint=checkpoint))
    known, given = (_fields_text(stored.task, each.data.facts()) for each in (stored, config))
    if known != given:
        raise ConfigError(
            f"data={config.data.name} has the fields {given}; the network was trained on {stored.data.name}, with the "
            f"fields {known}"
        )
    return config


def _fields_text(task: Task, facts: Facts) -> str:
    """Return the fields that a network reads, with the number of classes of a label, as text."""
    known = {name: facts.fields.get(name) for name in task.fields}
    classes = {name: f" of {len(each.names)} classes" for name, each in known.items() if each and each.is_label}
    return ", ".join(f"{name} {each}{classes.get(name, '')}" for name, each in known.items())


def _file_name(network: StoredNetwork, config: Config, words: Sequence[str]) -> str:
    digest = f"-{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]}" if words else ""
    return f"eval-{network.checkpoint.name}-{config.data.name}{digest}.json"


def _results(
    network: StoredNetwork, config: Config, device: "OneDevice", scored: "Mapping[str, Scores]"
) -> dict[str, Any]:
    values = {name: value for split, scores in scored.items() for name, value in scores.of(split).items()}
    confusion = {split: each.confusion for split, each in scored.items() if each.confusion is not None}
    return {
        "checkpoint": str(network.checkpoint),
        "model": config.model.name,
        "data": config.data.name,
        "data_settings": redact(to_plain(config)["data"]),
        "device": device.what,
        "device_reason": device.reason,
        "results": values,
        "examples": {split: scores.examples for split, scores in scored.items()},
        "confusion": {split: counts.tolist() for split, counts in confusion.items()},
        "class_names": list(config.data.facts().class_names),
    }


def _table(results: Mapping[str, Any], path: Path) -> str:
    facts = [
        ("checkpoint", results["checkpoint"]),
        ("network", f"{results['model']} on {results['data']}"),
        ("computed on", results["device"]),
        *((f"{split} examples", f"{count:,}") for split, count in results["examples"].items()),
        *((name, significant(value)) for name, value in results["results"].items()),
        ("written to", str(path)),
    ]
    return aligned(facts)
