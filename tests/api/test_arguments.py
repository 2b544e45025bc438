"""Overrides from the arguments of the public functions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import runner
from runner.api.arguments import arguments
from runner.config.hydra_app import compose
from runner.models import Mlp
from runner.strategies import ModelParallel, Strategy, SyncData
from tests.api.session_classes import Recorder, SmallNet


@pytest.mark.parametrize(
    ("keywords", "overrides"),
    [
        ({"model": "mlp", "seed": 3}, ["model=mlp", "seed=3"]),
        ({"train": {"steps": 4, "patience": None}}, ["train.steps=4", "train.patience=null"]),
        ({"optimizer": {"name": "adam", "lr": 1e-5}}, ["optimizer=adam", "optimizer.lr=1e-05"]),
        ({"optimizer.lr": np.array(0.25)}, ["optimizer.lr=0.25"]),
        ({"optimizer.lr": np.float32(0.5), "trace": np.bool_(True)}, ["optimizer.lr=0.5", "trace=true"]),
        ({"model.hidden": (8, np.int64(4)), "seed": np.int8(1)}, ["model.hidden=[8,4]", "seed=1"]),
        ({"data.path": Path("/a b/c.npz")}, ["data.path='/a b/c.npz'"]),
        ({"init_from": "true", "tracking.experiment": "1"}, ["init_from='true'", "tracking.experiment='1'"]),
        ({"model": Mlp(hidden=[7])}, ["model=mlp", "model.hidden=[7]", "model.activation=relu"]),
        ({"model": SmallNet}, ["model=small_net", "model.hidden=64"]),
        ({"parallelism.shard": {"fc*": "column", "a=b": None}}, [r"parallelism.shard={fc*: column,a\=b: null}"]),
        ({"directory": "here"}, ["hydra.run.dir=here"]),
    ],
)
def test_keywords_are_overrides(keywords: dict[str, Any], overrides: list[str]) -> None:
    assert arguments("run", ["seed=0"], (), keywords, directory="hydra.run.dir").overrides == ["seed=0", *overrides]


def test_a_list_is_an_axis_only_in_a_sweep() -> None:
    keywords: dict[str, Any] = {"seed": range(3), "model.hidden": [[8], [4, 2]], "optimizer": ["adam", "sgd"]}
    assert arguments("sweep", (), (), keywords, swept=True).overrides == [
        "seed=0,1,2",
        "model.hidden=[8],[4,2]",
        "optimizer=adam,sgd",
    ]
    settings = arguments("sweep", (), (), {"model": Mlp(hidden=[7, 3])}, swept=True)
    assert "model.hidden=[7,3]" in settings.overrides, "the settings of an object are not axes"


@pytest.mark.parametrize(
    "value", ["a, b", "it's", "on", "${x}", "", "ä", "/home/me/é", "null", "x=1", "[1]", "a\\'b", "1e3", "-m"]
)
def test_texts_reach_the_configuration_unchanged(value: str) -> None:
    (override,) = arguments("run", (), (), {"init_from": value}).overrides
    composed = compose([override]).composed
    text = override.partition("=")[2]
    assert "\\" in value or yaml.safe_load(text) == value, "resume and evaluate read values as YAML"
    node: Any = composed._get_node("init_from")
    assert node._value() == value


@pytest.mark.parametrize("strategy", [SyncData(workers=3), ModelParallel(constraints={"conv*": 0, "fc[67]": 1})])
def test_the_settings_of_a_strategy_reach_the_configuration(strategy: Strategy) -> None:
    assert runner.compose(parallelism=strategy, train={"steps": 2}).parallelism == strategy


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: runner.run("model=mlp", "seed=1"),
            r"runner\.run\('model=mlp', 'seed=1'\): expected one list, as in runner\.run\(\['model=mlp', 'seed=1'\]\)",
        ),
        (lambda: runner.sweep("seed=1,2"), r"runner\.sweep\('seed=1,2'\): expected one list"),
        (lambda: runner.compose([1]), r"compose\(\[\.\.\. 1 \.\.\.\]\): expected texts"),  # type: ignore[list-item]
        (lambda: runner.run(optimizer__lr=1), r"optimizer__lr: expected optimizer=\{'lr': ...\} or \*\*\{'optimizer"),
        (lambda: runner.run(seed=object()), r"seed=<object object at .*>: expected a number, a text, a list"),
        (lambda: runner.run(model=Recorder()), r"model=Recorder: got .*Recorder.* expected a class derived from Model"),
        (lambda: runner.run(callbacks=[print]), r"run\(callbacks=\[<built-in function print>\]\): expected objects"),  # type: ignore[list-item]
        (lambda: runner.compose(modle="mlp"), "modle"),
        (lambda: runner.install("mine.py"), r"install\('mine\.py'\): expected a list, as in install\(\["),
    ],
)
def test_wrong_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(runner.RunnerError, match=message):
        call()
