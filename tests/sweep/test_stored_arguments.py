"""The stored arguments of a sweep: which are used again on resume, and which the command line replaces."""

import re

import pytest

from runner.errors import SecurityError
from runner.sweep.grid import merged_arguments


@pytest.mark.parametrize(
    "argument",
    [
        "hydra.launcher._target_=os.system",
        "+hydra.callbacks.x={_target_: os.system}",
        "~hydra.launcher",
        "hydra={launcher: {_target_: os.system}}",
        "hydra/launcher=submitit_slurm",
        "+hydra/callbacks=hostile",
        "+model@hydra.callbacks=hostile",
        "hydra.launcher.setup=[sh]",
        "hydra.job.env_set.LD_PRELOAD=x.so",
        "hydra.searchpath=[/hostile]",
        "hydra.sweeper.params={hydra.launcher.n_jobs: 1}",
        "hydra.sweep.subdir=${oc.env:TOKEN}",
        "tracking.uri=http://hostile/${oc.env:TOKEN}",
        "tracking.uri=http://hostile/${oc${a}.env:TOKEN}",
        "model=../../hostile",
        "--config-dir",
        "--config-path=/hostile",
        "-cd",
        "--info",
    ],
)
def test_a_stored_argument_that_can_name_code_is_not_used_again(argument: str):
    with pytest.raises(SecurityError, match=re.escape(repr(argument))):
        merged_arguments(["-m", "seed=1,2", argument], ["a=1"])


@pytest.mark.parametrize(
    "argument",
    [
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=-1",
        "hydra.sweeper.max_batch_size=null",
        "hydra.job.chdir=true",
        "hydra.sweep.dir=multirun/${now:%Y-%m-%d}",
        "hydra.sweep.subdir=${hydra.job.num}",
        "+debug=overfit",
        "++optimizer.lr=0.1,0.2",
        "~train.monitor",
        "cluster/launcher=local",
        "data.path=../data",
        "model.hidden=[4,${train.batch_size}]",
        "hydrated=1",
    ],
)
def test_a_stored_argument_that_only_chooses_values_is_used_again(argument: str):
    assert merged_arguments(["-m", argument], ["a=1"]) == ["-m", argument, "a=1"]


def test_a_given_argument_replaces_one_that_can_name_code():
    stored = ["-m", "--config-dir", "hostile", "seed=1", "hydra.launcher.setup=[sh]"]
    given = ["--config-dir", "mine", "hydra.launcher.setup=[]"]
    assert merged_arguments(stored, given) == ["-m", "seed=1", "hydra.launcher.setup=[]", "--config-dir", "mine"]


def test_arguments_take_the_place_of_those_of_the_same_key_and_of_another_launcher():
    stored = ["-m", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert merged_arguments(stored, ["seed=3", "a=1"]) == ["-m", "seed=3", *stored[2:], "a=1"]
    assert merged_arguments(stored, ["hydra/launcher=basic"]) == ["-m", "seed=1,2", "hydra/launcher=basic"]
    assert merged_arguments(stored, ["hydra/launcher=joblib", "hydra.launcher.n_jobs=4"]) == [
        *stored[:3],
        "hydra.launcher.n_jobs=4",
    ]
