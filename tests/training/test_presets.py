"""Every preset of an experiment makes three updates, on synthetic data of its shapes, with one worker and with two."""

import math

import pytest

from runner.commands.help_text import options
from runner.config.conf_dir import conf_dir
from runner.config.configuration import fix_machine_values
from runner.tables.checking import small_batches, with_synthetic_data
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.first_steps import first_steps
from tests.small_runs import LARGE_PRESETS, composed_config

ALIKE = (
    *(f"imagenet_batch_{n}_{n}" for n in (256, 512, 1024)),
    *("imagenet_batch_256_128", "imagenet_batch_512_128"),
    *("inception_v3_batch_4096", "inception_v3_batch_16384", "inception_v3_2015"),
)
"""Presets for ImageNet that differ from a tested preset only in numbers of examples, rates or the schedule."""
PRESETS = [name for name in options(conf_dir())["experiment"] if name not in ALIKE]
OWN = {
    "mnist_sandblaster": [],
    **{f"{data}_batch_1024_128": ["train.batch_size=4", "parallelism.fc_batch=2"] for data in ("cifar10", "imagenet")},
}
"""Preset with settings that only its own strategy has -> further overrides."""
FASTER = {"imagenet_resnet": ["model.depth=50"]}
"""Preset -> overrides for a network that is planned faster."""
STRATEGIES = {"single": ["parallelism=single"], "sync_data": ["parallelism=sync_data"], "own": []}
CASES = [
    pytest.param(preset, strategy, marks=[pytest.mark.slow] * (rare or preset.startswith(LARGE_PRESETS)))
    for number, preset in enumerate(PRESETS)
    for strategy, rare in (
        [("own", False)] if preset in OWN else [("single", number % 2 == 1), ("sync_data", number % 2 == 0)]
    )
]
"""Each preset with each strategy. Presets in turn have a slow case with ``sync_data`` or with ``single``.

Other tests train every network with both strategies.
"""


def built(preset: str, strategy: str) -> Experiment:
    one_thread = ["cluster.device=cpu", "cluster.threads_per_worker=1", "tracking=none"]
    more = [*STRATEGIES[strategy], *OWN.get(preset, []), *FASTER.get(preset, [])]
    config = composed_config(f"experiment={preset}", *more, *one_thread)
    return build(fix_machine_values(config, 2))


@pytest.mark.parametrize(("preset", "strategy"), CASES)
def test_a_preset_makes_three_updates(preset: str, strategy: str) -> None:
    full = built(preset, strategy)
    experiment = with_synthetic_data(full, small_batches(full.config))
    assert isinstance(experiment, Experiment), experiment
    losses = first_steps(experiment, 3).losses
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))
    assert len(set(losses)) == 3
