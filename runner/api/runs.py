"""Training runs from Python, and stored runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runner.api.arguments import Arguments, arguments
from runner.api.weights import state_dict, write_safetensors
from runner.callback import Callback
from runner.checkpoint import BEST, NEWEST
from runner.commands import evaluate as evaluation
from runner.commands import train
from runner.commands.compare import comparison_text, named_run
from runner.commands.explain import explain as explanation
from runner.commands.plugins import require_session_classes
from runner.commands.predict import answers_of
from runner.commands.stored_network import StoredNetwork, network_in, with_device
from runner.config import hydra_app
from runner.config.configuration import fix_machine_values, load_stored
from runner.config.schema import Config
from runner.data.dataset import Facts
from runner.errors import ConfigError, DataError
from runner.plugin.session import CALLBACK, TABLES, SessionClass, session_class
from runner.records.run_directory import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE
from runner.records.stored_run import read_run
from runner.records.summary import Summary
from runner.system.machine import usable_cores
from runner.tracking import read_metrics

if TYPE_CHECKING:
    import pandas as pd


class Text(str):
    """A string whose ``repr`` is the string itself, so that a notebook shows its lines."""

    def __repr__(self) -> str:
        return str(self)


class Run:
    """A training run in a directory. The properties read the directory, so they also show a run that is active."""

    def __init__(self, directory: Path, classes: Sequence[SessionClass] = ()) -> None:
        """classes: the classes of this Python session that the run's configuration names."""
        self.directory = directory
        self._classes = Arguments([], tuple(each for each in classes if each.kind != CALLBACK))

    def __repr__(self) -> str:
        return train.results_table(self.summary)

    @property
    def summary(self) -> Summary:
        """The results. Raises DataError if there are none, because the run is active or was killed."""
        path = self.directory / SUMMARY_FILE
        if not path.is_file():
            raise DataError(f"{path} does not exist: the run is active or was killed; call resume() to continue it")
        return Summary.read(path)

    @property
    def run_id(self) -> str:
        """The identifier of the run; :func:`load` and ``runner compare`` accept it."""
        return read_run(self.directory).run_id

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        with self._classes.in_force():
            return load_stored(self.directory / CONFIG_FILE)

    def metrics(self) -> list[dict[str, float]]:
        """Return a record for each step with metrics: "step", "time" (seconds since 1970), and metric -> value."""
        found: dict[int, dict[str, float]] = {}
        for each in read_metrics(self.directory / METRICS_FILE):
            found.setdefault(each.step, {"step": each.step, "time": each.time_ms / 1000}).update(each.values)
        return list(found.values())

    def frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame with a row for each step and a column for each metric; missing values are NaN."""
        import pandas as pd

        records = self.metrics()
        return pd.DataFrame.from_records(records, index="step" if records else None)

    def weights(self, which: str | None = None) -> dict[str, NDArray[Any]]:
        """Return name -> value of each variable of the network, such as "fc1/weights", without optimizer slots.

        The values are those that evaluations use: averages, if the run keeps them (``optimizer.average``).

        which: "best" or "newest" checkpoint; None for the best if one is kept, else the newest. Raises CheckpointError
        if there is none.
        """
        stored, names = self._variables(which)
        return {name: stored[name] for name in names}

    def slots(self, which: str | None = None) -> dict[str, NDArray[Any]]:
        """Return name -> value of the optimizer's state, such as "fc1/weights/velocity". which: see :meth:`weights`."""
        stored, names = self._variables(which)
        return {name: value for name, value in stored.items() if name not in names}

    def predict(self, x: ArrayLike, which: str | None = None, **device: Any) -> NDArray[np.float64]:
        """Return class probabilities (N, classes), or the numbers (N, K) of a regression, for inputs of the network.

        x: (N, ...) in the units of the training data, such as images (N, C, H, W); axes of length 1 may be left out.
        which: see :meth:`weights`. device: as for training, such as cluster={"device": "cpu"}. Raises DataError for
        examples of another shape.
        """
        given = arguments("Run.predict", (), (), device)
        from runner.training.inference import one_device

        with self._classes.in_force():
            network = self._network(which)
            given_x = _examples(x, network.config.data.facts())
            here = one_device(with_device(network.config, given.overrides), usable_cores())
            return answers_of(network, here, given_x)

    def evaluate(
        self, overrides: Sequence[str] = (), /, *rest: object, which: str | None = None, **keywords: Any
    ) -> dict[str, float]:
        """Return metrics, such as "test/accuracy", on the dataset of the run or another dataset, such as data="mnist".

        overrides, keywords: may set data, train.eval_batch_size and the device. which: see :meth:`weights`.
        """
        given = arguments("Run.evaluate", overrides, rest, keywords)
        with self._classes.in_force(), given.in_force():
            _, results = evaluation.evaluated(self._network(which), given.overrides)
        return dict(results["results"])

    def explain(self) -> Text:
        """Return a text that describes the layers, devices, memory and transfers of the run's training step."""
        config = self.config
        with self._classes.in_force():
            return Text(explanation(config))

    def compare(self, other: "Run | str | Path") -> Text:
        """Return the differences between two runs: configuration, code, versions, machine, results."""
        second = read_run(other.directory) if isinstance(other, Run) else named_run(os.path.expanduser(other))
        return Text(comparison_text(read_run(self.directory), second))

    def resume(
        self,
        overrides: Sequence[str] = (),
        /,
        *rest: object,
        callbacks: Sequence[Callback] | Mapping[str, Any] = (),
        **keywords: Any,
    ) -> "Run":
        """Continue the run from its newest checkpoint and return it; see ``runner resume=DIR``.

        overrides, keywords: such as train={"epochs": 60}. callbacks: see :func:`run`. Raises ConfigError for a key that
        cannot change.
        """
        given = arguments("Run.resume", overrides, rest, keywords, callbacks=callbacks)
        with self._classes.in_force(), given.in_force():
            train.continue_run([f"{train.KEY}={self.directory}", *given.overrides], given.callbacks)
        return self

    def state_dict(self, names: Mapping[str, str] | None = None, which: str | None = None) -> dict[str, Any]:
        """Return the weights as a ``state_dict`` of PyTorch; see :func:`runner.api.weights.state_dict`."""
        return state_dict(self.weights(which), names)

    def export(self, path: str | os.PathLike[str], which: str | None = None) -> Path:
        """Write the network to ``FILE.safetensors`` (the weights) or ``FILE.onnx`` (inference); return the path.

        An ONNX file needs the packages of the extra "onnx". The input of the ONNX network is in the units of the
        training data. which: see :meth:`weights`. Raises ConfigError for another kind of file or a missing package,
        ResourceError if the file cannot be written.
        """
        file = Path(path)
        match file.suffix:
            case ".safetensors":
                return write_safetensors(file, self.weights(which))
            case ".onnx":
                from runner.api.onnx_file import write_onnx

                with self._classes.in_force():
                    return write_onnx(file, self._network(which))
        raise ConfigError(f"export({str(path)!r}): expected a file that ends in .safetensors or .onnx")

    def _network(self, which: str | None) -> StoredNetwork:
        if which not in (None, BEST, NEWEST):
            raise ConfigError(f"which={which!r}: expected {BEST!r}, {NEWEST!r} or None")
        return network_in(self.directory, which)

    def _variables(self, which: str | None) -> tuple[dict[str, NDArray[Any]], Mapping[str, object]]:
        from runner.training.inference import weights_of

        with self._classes.in_force():
            network = self._network(which)
            return network.variables(), weights_of(network.config)


def run(
    overrides: Sequence[str] = (),
    /,
    *rest: object,
    callbacks: Sequence[Callback] | Mapping[str, Any] = (),
    **keywords: Any,
) -> Run:
    """Train as the command line ``runner OVERRIDES`` does, and return the run.

    overrides: texts such as "optimizer.lr=0.1". keywords: overrides with Python values: model="mlp",
    train={"steps": 100}, seed=1, directory="here" (for hydra.run.dir); a group also takes an object, such as
    model=MyNet(hidden=64) or data=runner.arrays(...). init_from also takes weights, as :meth:`Run.weights` returns
    them. callbacks: objects that are called during training, or callbacks of plugins: {"name": {"key": value}}.

    If the command line would print an error and exit, this function raises the :class:`runner.errors.RunnerError`.
    """
    given = arguments("run", overrides, rest, keywords, callbacks=callbacks, directory="hydra.run.dir")
    with given.in_force():
        summary = train.run(given.overrides, given.callbacks)
    return Run(Path(summary.output_dir), given.classes)


def load(run: str | os.PathLike[str], *, classes: Sequence[type] = ()) -> Run:
    """Return a stored run. run: its directory, or the first digits of its run id or of its MLflow run id.

    classes: the classes of a Python session that the run's configuration names, such as [MyNet]. Raises ConfigError
    unless exactly one run matches, or if one of these classes is missing.
    """
    stored = named_run(os.path.expanduser(run))
    given = [session_class(_kind(schema), schema) for schema in classes]
    require_session_classes(stored.path, [each.reference for each in given])
    return Run(stored.path, given)


def _kind(schema: type) -> str:
    for kind, (base, _) in TABLES.items():
        if isinstance(schema, type) and issubclass(schema, base):
            return kind
    bases = ", ".join(base.__name__ for base, _ in TABLES.values())
    raise ConfigError(f"classes=[{schema!r}]: expected classes derived from one of {bases}")


def compose(overrides: Sequence[str] = (), /, *rest: object, **keywords: Any) -> Config:
    """Return the checked, typed configuration of a run, without starting it. Arguments: see :func:`run`."""
    given = arguments("compose", overrides, rest, keywords)
    with given.in_force():
        return hydra_app.compose(given.overrides).config()


def explain(overrides: Sequence[str] = (), /, *rest: object, **keywords: Any) -> Text:
    """Return a text that describes the layers, cost, placement and memory of a configuration. Arguments: see `run`."""
    given = arguments("explain", overrides, rest, keywords)
    with given.in_force():
        config = hydra_app.compose(given.overrides).config()
        return Text(explanation(fix_machine_values(config, usable_cores())))


def _examples(x: ArrayLike, facts: Facts) -> NDArray[Any]:
    """Return examples as the network reads them, (N, ...). Raises DataError for another shape or type."""
    given = np.asarray(x)
    if given.ndim < 1 or _long_axes(given.shape[1:]) != _long_axes(facts.shape) or not len(given):
        expected = f"(N, {', '.join(map(str, facts.shape))})"
        raise DataError(f"predict: x has shape {given.shape}; expected {expected}; pass one example x as x[None]")
    if given.dtype.kind not in "uif":
        raise DataError(f"predict: x has dtype {given.dtype}; expected numbers")
    return given.reshape(len(given), *facts.shape)


def _long_axes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
