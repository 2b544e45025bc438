"""Models, datasets, optimizers and callbacks that are defined in the Python session, and sweeps over them."""

import errno
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runner
from runner.cli import main
from runner.models import MODELS
from runner.optimizers import OPTIMIZERS
from runner.plugin import provenance
from runner.plugin.session import session_class
from runner.records.stored_run import read_plugins
from tests.api.session_classes import Halves, Recorder, SignDescent, SmallNet, Stripes
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture
from tests.small_runs import SMALL, typed

TWO_WORKERS = {"name": "sync_data", "workers": 2}


def small_arrays(**settings: Any) -> Any:
    """Return a dataset of 24 rows of 5 features."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 5)), np.arange(32) % 3
    return runner.arrays(x[:24], y[:24], x[24:], y[24:], **settings)


@pytest.mark.parametrize("parallelism", ["single", TWO_WORKERS], ids=["single", "two workers"])
def test_own_classes_and_arrays_train(parallelism: Any, here: Path, capsys: Capture) -> None:
    """Worker processes need only arrays: the program of a model or optimizer is sent to them."""
    run = runner.run(
        ["tracking=none", "tracking.pictures=false"],
        model=SmallNet(hidden=8),
        optimizer=SignDescent(lr=0.1),
        schedule=Halves(),
        data=small_arrays(val_fraction=0.25),
        parallelism=parallelism,
        train={"steps": 3, "batch_size": 6, "log_every": 1},
    )
    assert run.frame()["train/learning_rate"].tolist() == pytest.approx([0.1, 0.05, 0.025])
    assert (run.config.model, run.config.optimizer) == (SmallNet("small_net", 8), SignDescent("sign_descent", 0.1))
    assert run.weights()["fc1/weights"].shape == (5, 8)
    options = ("model/small_net", "optimizer/sign_descent", "schedule/halves")
    assert set(run.summary.plugins) == {f"session:{option}" for option in options}
    assert read_plugins(run.directory) == run.summary.plugins
    source = (run.directory / "session" / "model_small_net.py").read_text()
    assert source.startswith("@dataclass\nclass SmallNet(runner.Model):")
    assert source.endswith('classes, name="fc2")\n')
    assert "small_net" not in MODELS
    assert provenance() == {}, "the classes are only in force during a call"
    missing = "missing here: model=small_net, optimizer=sign_descent, schedule=halves; define them in Python"
    with pytest.raises(runner.RunnerError, match=missing):
        runner.load(run.directory)
    expected = r"classes=\[.*Recorder.*\]: .* derived from one of Task, .*, Strategy$"
    with pytest.raises(runner.RunnerError, match=expected):
        runner.load(run.directory, classes=[Recorder])
    assert "equal entries" in run.compare(run.directory), "a comparison needs no classes"
    loaded = runner.load(run.directory, classes=[SmallNet, SignDescent, Halves])
    assert loaded.predict(np.zeros((2, 5))).shape == (2, 3)
    assert loaded.resume(train={"steps": 4}).summary.steps == 4
    for verb in (["rerun"], ["eval"], ["predict", "x.npy"]):
        assert main([verb[0], str(run.directory), *verb[1:]]) == 2
        assert missing in capsys.readouterr().err
    assert main([f"resume={run.directory}"]) == 2


def test_a_changed_class_does_not_resume_a_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner.run(SMALL, model=SmallNet(hidden=4))
    monkeypatch.setattr("runner.plugin.session._source", lambda schema: "class SmallNet: ...")
    with pytest.raises(runner.RunnerError, match="plugin session:model/small_net was changed"):
        run.resume(train={"steps": 9})


def test_a_dataset_class_trains_in_one_process_only(here: Path) -> None:
    train = {"steps": 2, "batch_size": 6}
    run = runner.run(SMALL, model="mlp", data=Stripes(), train=train)
    assert run.evaluate()["test/loss"] > 0
    assert run.evaluate(data=Stripes(examples=8))["test/loss"] > 0
    with pytest.raises(runner.RunnerError, match=r"Stripes was .*; use parallelism=single or cluster\.one_process"):
        runner.run(SMALL, model="mlp", data=Stripes(), parallelism=TWO_WORKERS, train=train)
    together = [*SMALL, "cluster.one_process=true"]
    run = runner.run(together, model="mlp", data=Stripes, parallelism=TWO_WORKERS, train=train)
    assert run.summary.status == "finished"


def test_options_of_an_installed_file_are_chosen_by_name_or_as_objects(here: Path) -> None:
    with restored_tables():
        runner.install([str(EXAMPLES / "own_optimizer" / "lion.py")])
        lion = OPTIMIZERS["lion"](lr=0.5, clip_norm=1.0)
        assert runner.compose(optimizer={"name": "lion", "lr": 0.5}).optimizer == lion
        assert runner.compose(optimizer=lion).optimizer == lion


def test_a_class_of_a_notebook_is_stored_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "import runner\nfrom dataclasses import dataclass\n\n@dataclass\nclass Net(runner.Model):\n" + (
        "    def forward(self, net, x, classes):\n        return x\n\nx = 1\n"
    )
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(cell), None, cell.splitlines(keepends=True), "<cell 1>"))
    module: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, "<cell 1>", "exec"), module)
    assert session_class("model", module["Net"]).source == "".join(cell.splitlines(keepends=True)[3:7])
    monkeypatch.delitem(linecache.cache, "<cell 1>")
    assert session_class("model", module["Net"]).source == "# The source of Net is not available.\n"


@dataclass
class Mlp(runner.Model):
    """A class that takes the name of an option."""

    def forward(self, net: Any, x: Any, classes: int) -> Any: ...


class Undecorated(SmallNet):
    """A class that is not a dataclass."""


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Mlp, "model=Mlp: option 'mlp' of model already exists; rename the class"),
        (Undecorated, "model=Undecorated: got class Undecorated, expected a dataclass: put @dataclass before it"),
        (runner.Model, "model=Model: got class Model without forward, expected all its abstract methods"),
        (Recorder, "expected a class derived from Model"),
    ],
)
def test_a_class_that_cannot_be_an_option_is_refused(schema: type, message: str) -> None:
    with pytest.raises(runner.RunnerError, match=message):
        session_class("model", schema)


def test_a_sweep_over_an_own_class_has_a_frame_and_a_best_run(here: Path, capsys: Capture) -> None:
    data = small_arrays()
    train = {"steps": 2, "batch_size": 6}
    keywords: dict[str, Any] = {"model.hidden": [3, 4], "seed": [1, 2]}
    found = runner.sweep(SMALL, model=SmallNet, data=data, train=train, directory="sweep", **keywords)
    frame = found.frame()
    assert found.directory == here / "sweep"
    assert capsys.readouterr().out == ""
    assert sorted(zip(frame["model_hidden"], frame["seed"], strict=True)) == [(3, 1), (3, 2), (4, 1), (4, 2)]
    assert frame["test_accuracy"].is_monotonic_decreasing
    best = found.best
    assert str(best.directory) == frame["run_dir"][0]
    assert best.summary.final["test/accuracy"] == frame["test_accuracy"][0]
    assert best.predict(np.zeros((2, 5))).shape == (2, 3)
    assert [run.config.seed for run in found.runs] == [1, 2, 1, 2]
    assert repr(found).startswith("job  model_hidden  seed  test_accuracy")
    with pytest.raises(runner.RunnerError, match="hydra/launcher=joblib with session:model/small_net: the classes"):
        runner.sweep(["hydra/launcher=joblib"], model=SmallNet, data=data, seed=[1, 2])


def test_a_sweep_of_simulations_has_runs(here: Path) -> None:
    found = runner.sweep([*SMALL, "model=mlp", "cluster=ethernet", "simulate.updates=1"], seed=[1, 2])
    assert [run.summary.status for run in found.runs] == ["simulated", "simulated"]


# The plugin allows only Optuna 2, whose import warns with current versions of Python and SQLAlchemy.
@pytest.mark.filterwarnings("ignore")
def test_a_sweeper_that_learns_returns_a_sweep(here: Path) -> None:
    optuna = "hydra/sweeper=optuna hydra.sweeper.n_trials=2 hydra.sweeper.n_jobs=1 optimizer.lr=interval(0.01,0.1)"
    found = runner.sweep([*SMALL, "model=mlp", "model.hidden=[4]", *typed(optuna)], directory="learned")
    assert len(found.runs) == len(found.frame()) == 2


def test_arrays_are_stored_once_by_their_content(here: Path) -> None:
    first = small_arrays()
    inode = Path(first.path).stat().st_ino
    second, other = small_arrays(), small_arrays(class_names=["a", "b", "c"])
    assert Path(first.path).stat().st_ino == inode, "the file is not written again"
    assert first.path == second.path != other.path
    assert Path(first.path).parent == here / "cache" / "runner" / "arrays"
    assert sorted(path.suffix for path in Path(first.path).parent.iterdir()) == [".npz", ".npz"]
    assert other.facts().class_names == ("a", "b", "c")
    assert other.facts().shape == (5,)
    with pytest.raises(runner.RunnerError, match="x_train holds Python objects; expected an array of numbers"):
        runner.arrays(np.array([None]), [0], np.array([None]), [0])
    with pytest.raises(runner.RunnerError, match=r"y_test is int64\[2\]; expected floats \[2, K\]"):
        runner.arrays(np.zeros((2, 3)), [0.5, 1.0], np.zeros((2, 3)), [0, 1])


def test_arrays_for_which_the_disk_has_no_space_leave_no_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, **found: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(runner.RunnerError, match=r"cannot write .*: No space left on device; set XDG_CACHE_HOME"):
        small_arrays()
    assert list((here / "cache" / "runner" / "arrays").iterdir()) == []
