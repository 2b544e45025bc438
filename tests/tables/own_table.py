"""Small tables in the user's folder, of training runs and of counts, and the commands that use them."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from runner.cli import main
from runner.commands.table_files import TableReader, current
from runner.config.conf_dir import conf_dir
from runner.tables.cells import TableState
from runner.tables.table_file import table_names
from tests.refusal import Capture, refused
from tests.tables import edited

FILES = table_names([conf_dir()])
"""Name -> file of the tables of the project."""

_READER = TableReader()

TABLE: dict[str, Any] = yaml.safe_load("""
title: Two ways
kind: measured
seeds: [1, 2]
base: [data=synthetic, "data.shape=[1,4,4]", data.classes=3, data.examples=24, data.test_examples=6, model=mlp,
  "model.hidden=[3]", parallelism=single, cluster.threads_per_worker=1, train.batch_size=8, train.steps=4,
  train.eval_every=2, tracking=none, tracking.pictures=false]
papers: {book: {cite: A book}}
columns:
  loss: {title: loss, read: test/loss}
  early: {title: early loss, read: test/loss, at: {examples: 16}}
  difference: {title: difference, read: weight_difference}
runs: {whole: {}, parts: {overrides: [train.microbatches=2], against: whole}}
rows:
  whole: {title: Whole batches, run: whole, cells: {loss: {}, early: {}}}
  parts: {title: Two parts, run: parts, cells: {loss: {}, difference: {}}}
claims:
  equal: {text: the same, cells: [parts/difference], relation: at_most, limit: 0.00001}
  lower: {text: lower, cells: [whole/loss, parts/loss], relation: lowest}
""")

COUNTS: dict[str, Any] = yaml.safe_load("""
title: Two networks
kind: count
base: [parallelism=single, model=mlp]
papers: {book: {cite: A book}}
columns: {all: {title: parameters, read: parameters}, macs: {title: macs, read: multiply_adds}}
runs: {one: {overrides: ["model.hidden=[3]"]}, two: {overrides: ["model.hidden=[3,2]"]}}
rows:
  one:
    title: One layer
    run: one
    cells: {all: {published: [{printed: "235", paper: book, confidence: S, tolerance: rounding}]}, macs: {}}
  two:
    title: Two layers
    run: two
    cells:
      all: {published: [{printed: 1 K, paper: book, where: p. 3, confidence: S}]}
      macs: {published: [{printed: "230", paper: book, confidence: C, tolerance: "1"}]}
  three: {title: Three layers, missing: nobody built it, cells: {all: {}}}
""")


@cache
def committed(name: str) -> TableState:
    """Return a table of the project with its committed results; tests only read it."""
    return current(_READER.read(FILES[name]))


def write(path: Path, document: dict[str, Any]) -> Path:
    """Write the file of a table, with its folder, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def changed(own: Path, **edits: Any) -> None:
    """Write the table with other values, see :func:`edited`."""
    write(own, edited(TABLE, **edits))


def command(own: Path, verb: str, *arguments: str) -> list[str]:
    """Return the command line of ``runner table VERB`` for a table."""
    return ["table", verb, own.stem, "--config-dir", str(own.parents[1]), *arguments]


def run(own: Path, *arguments: str) -> int:
    return main(command(own, "run", *arguments))


def trained(capsys: Capture) -> int:
    """Return the number of jobs that were started since the last call."""
    return capsys.readouterr().err.count("jobs ended")


def refused_run(own: Path, capsys: Capture, *arguments: str, code: int = 2) -> str:
    """Return the message with which ``runner table run`` refuses a table."""
    capsys.readouterr()
    return refused(command(own, "run", *arguments), capsys, code)
