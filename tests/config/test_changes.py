"""The keys of a configuration whose values are not defaults."""

import pytest

from runner.config.conf_dir import conf_dir
from runner.config.configuration import fix_machine_values
from runner.config.groups import GROUPS
from runner.config.outcome import changes
from runner.errors import ConfigError
from tests.small_runs import composed_config as composed


def option_files(group: str) -> list[str]:
    return [name for name in GROUPS[group] if (conf_dir() / group / f"{name}.yaml").is_file()]


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ([], []),
        (["seed=0", "optimizer.lr=0.03"], []),
        (["seed=1", "model=mlp", "model.hidden=[3]"], ["seed=1", "model.name=mlp", "model.hidden=[3]"]),
        (["optimizer=sgd", "optimizer.clip_norm=null"], ["optimizer.name=sgd", "optimizer.clip_norm=null"]),
        (["data.augment.flip=true"], ["data.augment.flip=true"]),
        (["train.steps=7"], ["train.epochs=null", "train.steps=7"]),
        (
            ["model=alexnet_footnote", "data=synthetic"],
            ["model.name=alexnet", "model.conv4=384", "data.name=synthetic"],
        ),
        (["experiment=digits_equivalence"], ["precision=float64", "train.epochs=null", "train.steps=50"]),
        (
            ["parallelism=async_data", "parallelism/staleness=bounded", "parallelism.staleness.limit=3"],
            ["parallelism.name=async_data", "parallelism.staleness.policy=bounded", "parallelism.staleness.limit=3"],
        ),
        (["cluster.threads_per_worker=2"], ["cluster.threads_per_worker=2"]),
        (["tracking.uri=http://me:hunter2@host"], ["tracking.uri=http://[redacted]@host"]),
    ],
    ids=str,
)
def test_changes_are_the_set_keys_without_those_that_the_machine_filled_in(overrides: list[str], changed: list[str]):
    config = composed(*overrides)
    assert sorted(changes(config)) == sorted(changed)
    assert changes(fix_machine_values(config, cores=8)) == changes(config)


@pytest.mark.parametrize("group", GROUPS)
def test_an_option_without_further_keys_changes_only_the_name(group: str):
    """The defaults that are computed from YAML files and dataclasses equal the defaults that Hydra composes."""
    usual = getattr(composed(), group).name
    for name in option_files(group):
        try:
            config = composed(f"{group}={name}")
        except ConfigError:  # the option cannot be combined with the other defaults
            continue
        assert changes(config) == ([] if name == usual else [f"{group}.name={name}"])
