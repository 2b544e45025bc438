"""The measured networks: the same models that the configuration gives, made without it."""

import pytest

from benchmarks.cases import CASES
from benchmarks.experiments import configuration
from benchmarks.gpu.networks import GPU_CASES, model_of, task_of


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_that_of_the_configuration(name: str) -> None:
    overrides = CASES[name].model
    config = configuration([*overrides, "data=synthetic", "tracking=none"])
    assert model_of(overrides) == config.model  # type: ignore[attr-defined]


def test_batches_are_those_of_convnet_benchmarks() -> None:
    batches = {name: case.batch for name, case in GPU_CASES.items() if name != "smoke"}
    assert batches == {"alexnet": 128, "vgg_a": 64, "googlenet": 128, "resnet110": 128, "overfeat": 128}


def test_bfloat16_computes_narrowly_and_the_others_do_not() -> None:
    dtypes = {precision: task_of(GPU_CASES["smoke"], precision).dtype for precision in ("float32", "tf32", "bfloat16")}
    assert dtypes == {"float32": "float32", "tf32": "float32", "bfloat16": "bfloat16"}


def test_overrides_that_are_no_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected model=PRESET, then model\.KEY=VALUE"):
        model_of(["model=lenet", "optimizer.lr=1"])
