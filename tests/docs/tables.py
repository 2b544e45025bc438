"""The page docs/tables.md, made of the committed results; `python -m tests.docs.tables` writes it."""

from pathlib import Path

from runner.tables.rendering import as_markdown
from tests.tables.own_table import FILES, committed

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

_HEAD = """\
# Tables of papers

A table is a YAML file, `conf/table/NAME.yaml`: papers with their published values, runs (configurations), and rows and
columns whose cells read values from the runs. The computed values are committed under `results/NAME/`.

```bash
runner table list
runner table show network_sizes
runner table export network_sizes --format csv --output sizes.csv
```

`runner table list` shows, for each table, the existing values and the requirements of the missing ones: the number of
runs, their time, workers, and data that are not on this machine. The time is that of seeds that were run, or else an
estimate of `runner table run`; without either, it is unknown. With `--budget 0s`, `runner table run` only estimates: it
times three updates, on synthetic data if the data are missing. Estimates are committed with their CPU in
`results/NAME/estimates.json`.

`runner table run NAME` computes the missing values. Training runs are jobs of a sweep in `multirun/table/NAME`, one for
each seed of the file. A second start of the command continues the first one and repeats no finished job. Before the
jobs start, the command prints them with their estimated times, and lists the jobs that it skips for lack of data or
memory. `--cells ROW` chooses rows, `--budget 2h` limits the estimated time, and overrides choose the launcher
(`hydra/launcher=joblib hydra.launcher.n_jobs=2`). `--results DIR` chooses another folder of results, for example to
measure a table of the project again.

A result is never changed. If the overrides of a run are changed afterwards, its earlier values are *stale*: state the
reason in the run's key `changed`, and run the table again; the earlier values stay below the table, with the reason.

Each result, `results/NAME/RUN/seed-N.HASH.json`, names its commit, run directory and MLflow run (`--format json` names
the file of each value), and stores its configuration, a digest of the data, the kind of machine, and the weights after
three updates. `runner table check NAME` (or `--all`) plans every run, makes two steps of it on synthetic data, and
checks the results. A result is *stale* if configuration or data changed, or if the same kind of machine no longer
reproduces these weights. Without the data, or on another kind of machine, the result is *unchecked*.

## A table of your own

A table of your own is a file `DIR/table/NAME.yaml`, used with `--config-dir DIR`. `runner new table` writes a commented
one: two optimizers, five seeds, a published value and a claim. Its ten runs took 31 s on two busy cores.

```bash
runner new table my_table
runner table run my_table --config-dir conf
runner table show my_table --config-dir conf
runner table export my_table --config-dir conf --format latex --output my_table.tex
runner table export my_table --config-dir conf --format png --output my_table.png
```

If you edit `conf/table/my_table.yaml` and run the table again, only missing runs are trained. The results are JSON
files in `results/my_table`, next to `conf`. If you commit these files with the table, a clone shows the same values
without training. The PNG has the table, its claims, and the curves of the metrics that its columns read, as means with
a band of one standard deviation over the seeds. The LaTeX has the computed values, with the best of each column in
bold; the document must load `booktabs`:

<!-- file: paper.tex -->
```latex
\\documentclass{article}
\\usepackage{booktabs}
\\begin{document}
\\begin{table}
  \\centering
  \\input{my_table}
  \\caption{Two optimizers on handwritten digits.}
\\end{table}
\\end{document}
```

With `--plugin`, the runs of a table can use the options of a [plugin](plugins.md#a-table-with-a-plugin).

## How a table decides

A value is never shown without its kind. *count*: sizes of networks, counted in the graph; nothing is trained.
*measured*: values of training runs, over seeds. *small*: values of training runs that test the same claim with a
smaller network, a smaller dataset or fewer epochs; the table states the difference, and decides only orders and ratios.
*simulated*: times on [described hardware](simulation.md); values to which the description was fitted are marked.
*benchmark*: times of a step without update, of runner and other libraries on one machine. The key `seeds` lists the
numbers of the rounds; in each round, all libraries compute the same network, one after the other. In a clone of the
repository, `make bench-peers` installs the libraries, and `python -m benchmarks table NAME` measures missing rounds.

Each published value has a code for its confidence. A computed value *passes* or *fails* against a value that a paper
states (codes S and P), within a tolerance that the file states; `rounding` is half a unit of the last printed digit.
Against a value that follows from a published specification (C and D), it *agrees* or *differs*. A published value
without tolerance, or with another code, is context and decides nothing. Over several seeds, the 95 % interval of the
mean decides: a value passes if the interval is inside `published ± tolerance`, fails if it is outside, and is
*inconclusive* if it crosses a bound or if there is only one seed.

A claim is a statement over cells. It *holds* or *fails* by a two-sided test (Welch's, or a permutation test; two
one-sided tests for an equivalence) at 5 % with Holm's correction over all claims of the table, including those without
values. Otherwise, the claim is *undecided*, and the table states the number of seeds that would decide it with a power
of 80 %. In a benchmark, the values of one round are a pair, because a temporary slowdown of the machine affects all
libraries: the test is the paired t-test of their differences, or a permutation of the signs. The table includes every
seed or round of the file; a run whose loss is no longer finite counts as a value that is not finite.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_HEAD, *(as_markdown(committed(name)) for name in FILES)])


if __name__ == "__main__":
    PAGE.write_text(page())
