"""Invalid input: the exit code of its class, and one message with the key, the value and the options."""

from pathlib import Path

import pytest

from tests.fake_training import FakeTraining
from tests.refusal import Capture, refused


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        (["model.filtres=3"], ["model.filtres: Key 'filtres' not in 'LeNet'", "did you mean 'filters'?"]),
        (["modle=lenet"], ["Could not override 'modle'", "did you mean 'model'?"]),
        (["+optimizer.foo=1"], ["optimizer.foo: Key 'foo' not in 'Momentum'", "Keys of Momentum: name, lr"]),
        (["+stray=1"], ["stray: Key 'stray' not in 'Config'", "Keys of the top level: seed, precision"]),
        (["+model._target_=os.system"], ["model._target_: Key '_target_' not in 'LeNet'"]),
        (
            ["optimizer.lr=fast"],
            [
                "override optimizer.lr=fast",
                "optimizer.lr: Value 'fast' of type 'str' could not be converted to Float",
            ],
        ),
        (
            ["train.batch_size=2.5"],
            ["train.batch_size: Value '2.5' of type 'float' could not be converted to Integer"],
        ),
        (["model=lenet5"], ["Could not find 'model/lenet5'", "cifar_convnet\n", "\tlenet\n", "\tmlp"]),
        (["experiment=none"], ["Could not find 'experiment/none'", "mnist_lenet"]),
        (["seed=null"], ["seed: field 'seed' is not Optional"]),
        (["seed=???"], ["seed: missing value"]),
        (["~model"], ["model: missing value"]),
        (["model=null"], ["model=null: Config group override must be a string or a list"]),
        (["init_from=runs/lr=0.1"], ["mismatched input '='", """'init_from="runs/lr=0.1"'"""]),
        (["eval"], ["the following arguments are required: CHECKPOINT\n"]),
        (["seed=[1"], ["no viable alternative"]),
        (["train.batch_size=1"], ["train.batch_size=1 is smaller than parallelism.workers=2"]),
        (["model.units=${oc.env:NO_SUCH_VARIABLE}"], ["Environment variable 'NO_SUCH_VARIABLE' not found"]),
        (["--config-dir", "absent"], ["Additional config directory", "absent' not found"]),
        (["hydra/job_logging=default"], ["cannot be changed, it is always hydra/job_logging=none"]),
        (["-cn", "absent"], ["Cannot find primary config 'absent'"]),
        (["--cfg", "job", "--package", "absent"], ["package 'absent' not found in config"]),
        (["-m", "seed=1,2", "~hydra.callbacks.runner"], ["'hydra.callbacks.runner' does not exist"]),
        (["--no-such-option"], ["unrecognized arguments: --no-such-option"]),
        (["--config-dir", "conf", "list"], ["verb 'list' after --config-dir: expected the verb first"]),
        (["-m", "--cfg", "job"], ["Only one of --run, --multirun, --cfg"]),
        (["-m", "seed=1,2", "optimizer.lr=fast,slow"], ["optimizer.lr: Value 'fast' of type 'str'"]),
    ],
    ids=" ".join,
)
def test_a_configuration_error_exits_with_2_and_names_the_key(
    fake_training: FakeTraining, capsys: Capture, arguments: list[str], complaints: list[str]
):
    message = refused(arguments, capsys)
    for complaint in complaints:
        assert complaint in message
    assert "HYDRA_FULL_ERROR" not in message
    assert "To append" not in message
    assert not fake_training.calls


@pytest.mark.parametrize("command", [(), ("explain",)], ids=["train", "explain"])
def test_a_precision_that_the_cpu_lacks_is_refused_before_anything_is_created(
    command: tuple[str, ...], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2"}))
    run_dir = f"hydra.run.dir={folder / 'run'}"
    message = refused([*command, "precision=bfloat16", "tracking=none", run_dir], capsys)
    assert "precision=bfloat16: expected a CPU with one of avx512_bf16, amx_bf16" in message
    assert not list(folder.iterdir())


@pytest.mark.parametrize("arguments", [["hydra.run.dir=file/x"], ["-m", "seed=1,2", "hydra.sweep.dir=file/x"]])
def test_a_directory_that_cannot_be_made_leaves_with_4(
    fake_training: FakeTraining, folder: Path, capsys: Capture, arguments: list[str]
):
    (folder / "file").touch()
    message = refused(arguments, capsys, code=4)
    assert "cannot write" in message
    assert "file" in message
    assert "hydra.run.dir=DIR" in message
    assert not fake_training.calls


@pytest.mark.parametrize("option", ["--experimental-rerun=run.pickle", "--exp=run.pickle"])
def test_pickles_are_not_run(fake_training: FakeTraining, capsys: Capture, option: str):
    assert "executes code of a pickle" in refused([option], capsys, code=8)
