"""A dataset of rows from a CSV file, a loss, a metric, and a task with two outputs and its own loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Dataset, Facts, Split
from runner.data.own_files import NormalisedFiles
from runner.engine.graph import Expr, NetworkBuilder, Outputs, Tensor, apply, ops
from runner.errors import DataError
from runner.fields import LABEL, Field
from runner.nn import new_layer
from runner.plugin import Plugin
from runner.tasks.base import MAX, MIN, NUMBERS, Loss, Metric, Task


@dataclass
class Table(NormalisedFiles):
    """Rows of numbers in a CSV file with a header. Every fifth row is a test example.

    targets: columns to predict, the field y. label: column with classes 0, 1, ..., the field "kind"; "" for none. All
    other columns are the inputs x.
    """

    name: str = "table"
    targets: list[str] = field(default_factory=list)
    label: str = ""

    ask = "name a CSV file, as in data=table data.path=my.csv data.targets=[price]"

    def facts_of_files(self) -> Facts:
        """Return the fields and the numbers of examples."""
        columns, rows = self._read()
        inputs = [name for name in columns if name not in (*self.targets, self.label)]
        fields = {
            "x": Field((len(inputs),), names=tuple(inputs)),
            "y": Field((len(self.targets),), names=tuple(self.targets)),
        }
        if self.label:
            classes = int(rows[:, columns.index(self.label)].max()) + 1
            fields["kind"] = Field((), LABEL, tuple(f"{self.label} {k}" for k in range(classes)))
        test = len(rows[::5])
        return Facts(fields, len(rows) - test, test)

    def scale(self) -> float:
        """Return 1, because the inputs can be any numbers."""
        return 1.0

    def load(self) -> Dataset:
        """Read both splits."""
        columns, rows = self._read()
        fields, found = self.facts().fields, dict[str, NDArray[np.float64]]()
        for name in ("x", "y"):
            found[name] = rows[:, [columns.index(column) for column in fields[name].names]]
        arrays = {**found, **({"kind": rows[:, columns.index(self.label)].astype(np.int64)} if self.label else {})}
        test = np.arange(len(rows)) % 5 == 0
        train, scored = (Split({name: each[part] for name, each in arrays.items()}) for part in (~test, test))
        return Dataset(self.name, train, scored, self.normalisation_of(train["x"]))

    def _read(self) -> tuple[list[str], NDArray[np.float64]]:
        """Return the names of the columns, and the rows."""
        try:
            header, *lines = Path(self.path).read_text().splitlines()
            columns, rows = header.split(","), np.loadtxt(lines, delimiter=",", ndmin=2)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path}: cannot be read as a CSV file of numbers: {error}") from error
        lacking = [name for name in (*self.targets, self.label) if name and name not in columns]
        if lacking or not self.targets:
            raise DataError(f"{self.path}: data.targets={self.targets}: expected some of {', '.join(columns)}")
        return columns, rows


def huber(prediction: Expr, target: Expr) -> Expr:
    """Return the mean Huber loss with threshold 1: quadratic for small errors, linear for large ones."""
    error = abs(prediction - target)
    small = apply(ops.minimum, error, error.scalar(1.0))
    return apply(ops.reduce_mean, small * (error - 0.5 * small), axes=(1,))


def within_tenth(prediction: Expr, target: Expr) -> Expr:
    """Return the fraction of an example's numbers with an error below 0.1."""
    error = abs(prediction - target)
    near = apply(ops.cast, apply(ops.less, error, error.scalar(0.1)), dtype=error.spec.dtype)
    return apply(ops.reduce_mean, near, axes=(1,))


@dataclass
class NumbersAndKind(Task):
    """Prediction of the numbers y and the class "kind": the model returns the numbers, then a logit for each class.

    weight: factor of the cross-entropy, which the loss adds to the mean squared error.
    """

    name: str = "numbers_and_kind"
    weight: float = 0.5

    fields = ("x", "y", "kind")

    @property
    def measures(self) -> Mapping[str, Metric]:
        """The mean squared error, and the accuracy of the class."""
        return {"mse": Metric(MIN), "kind_accuracy": Metric(MAX, ".2%")}

    def outputs(self, fields: Mapping[str, Field]) -> int:
        """Return how many numbers and classes there are in all."""
        return len(self.columns(fields))

    def columns(self, fields: Mapping[str, Field]) -> tuple[str, ...]:
        """Return the names of the numbers and of the classes."""
        return (*fields["y"].names, *fields["kind"].names)

    def score(self, net: NetworkBuilder, prediction: Tensor, batch: Mapping[str, Tensor]) -> Outputs:
        """Add the weighted sum of both losses."""
        graph = net.graph
        with new_layer(net, "loss", "loss"):
            both, y = (Expr(graph, ops.as_dtype(graph, each, net.state_dtype)) for each in (prediction, batch["y"]))
            (examples, outputs), count = both.spec.shape, y.spec.shape[1]
            numbers = apply(ops.slice, both, begin=(0, 0), size=(examples, count))
            logits = apply(ops.slice, both, begin=(0, count), size=(examples, outputs - count))
            squares = apply(ops.reduce_mean, (numbers - y).square(), axes=(1,))
            entropy = Expr(graph, ops.softmax_cross_entropy(graph, logits.tensor, batch["kind"])[0])
            losses = net.output((squares + self.weight * entropy).tensor)
            hits = ops.equal(graph, ops.argmax(graph, logits.tensor, axis=1), batch["kind"])
            right = ops.cast(graph, hits, net.state_dtype)
        return Outputs(losses, {"mse": squares.tensor, "kind_accuracy": right}, {}, both.tensor)


plugin = Plugin(
    datasets={"table": Table},
    tasks={"numbers_and_kind": NumbersAndKind},
    losses={"huber": Loss(NUMBERS, huber)},
    metrics={"within_tenth": Metric(MAX, ".2%", NUMBERS, within_tenth)},
)
