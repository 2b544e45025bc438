"""The device of an evaluation: one device, chosen by keys of the cluster."""

from dataclasses import replace

import pytest

from runner.commands.device_arguments import split_device, with_device
from runner.config.schema import Config, LocalCluster
from runner.errors import ConfigError
from tests.small_runs import small_config


def stored(**cluster: object) -> Config:
    """Of a run of two workers on GPUs."""
    config = small_config("parallelism=sync_data", "parallelism.workers=2")
    known = {"device": "gpu", "device_taken": "gpu", "gpus": [3, 4], "emulate": True, "workers": 2, **cluster}
    return replace(config, cluster=LocalCluster(**known))


def test_keys_of_the_device_are_split_from_files_and_other_overrides() -> None:
    arguments = [
        "a.png",
        "cluster.device=cpu",
        "./cluster.device=cpu",
        "cluster.workers=2",
        "cluster.gpus=[1]",
        "tf32",
    ]
    asked, others = split_device([*arguments, "cluster.tf32"])
    assert asked == ["cluster.device=cpu", "cluster.gpus=[1]"]
    assert others == ["a.png", "./cluster.device=cpu", "cluster.workers=2", "tf32", "cluster.tf32"]


def test_the_devices_of_training_do_not_matter() -> None:
    assert with_device(stored(), []).cluster == LocalCluster()
    asked = ["cluster.device=gpu", "cluster.gpus=[1]"]
    assert with_device(stored(), asked).cluster == LocalCluster(device="gpu", gpus=[1])


def test_gpus_round_as_in_training_by_default() -> None:
    rounded = stored(tf32=True)
    assert with_device(rounded, []).cluster.tf32
    assert not with_device(rounded, ["cluster.tf32=false"]).cluster.tf32
    assert with_device(stored(), ["cluster.tf32=true"]).cluster.tf32
    assert with_device(rounded, ["cluster.device=cpu"]).cluster == LocalCluster(device="cpu")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["cluster.gpus=[0,1]"], r"gpus=\[0, 1\]: expected the number of one GPU, such as"),
        (["cluster.device=cpu", "cluster.gpus=[0]"], r"gpus=\[0\] with cluster\.device=cpu: the run uses no GPU; use"),
        (
            ["cluster.device=cpu", "cluster.tf32=true"],
            r"tf32=true with cluster\.device=cpu: the run uses no GPU; use",
        ),
        (["cluster.device=tpu"], r"cluster\.device='tpu': expected one of auto, cpu, gpu"),
    ],
)
def test_anything_but_one_device_is_refused(asked: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        with_device(stored(), asked)
