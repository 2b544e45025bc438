"""Tables of training runs: running, storing and refusing jobs of one small table."""

import json
import math
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from runner.checkpoint import load, newest, save
from runner.cli import main
from runner.commands import table
from runner.commands.table import _list
from runner.commands.table_files import TableReader, current
from runner.commands.table_run import TableSweep
from runner.config.configuration import to_plain
from runner.data import Synthetic
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError, ResourceError
from runner.records.summary import Summary
from runner.system.machine import usable_cores
from runner.tables import measured
from runner.tables.measured import data_digest, weight_difference
from runner.tables.results import Result, folder_of, write_result
from runner.tables.table_file import table_names
from runner.training.experiment import Experiment
from runner.training.first_steps import FirstSteps
from tests.checkpoint.conftest import META
from tests.plugin_tables import restored_tables
from tests.refusal import Capture, refused
from tests.tables.own_table import TABLE, changed, command, refused_run, run, trained


def test_a_table_is_run_once_and_stores_where_its_values_come_from(finished: Path, capsys: Capture) -> None:
    own = finished
    state = current(TableReader().read(own))
    results = state.results["parts"].current
    assert list(results) == [1, 2]
    for seed, result in results.items():
        directory = Path(result.origin.directory)
        summary = Summary.read(directory / "summary.json")
        assert result.evaluations[-1].values["test/loss"] == summary.final["test/loss"]
        assert [(each.updates, each.examples) for each in result.evaluations] == [(2, 16), (4, 32)]
        assert result.origin.weights_sha256 == summary.weights_sha256
        assert result.origin.data == data_digest(replace(TableReader().read(own).configs["parts"], seed=seed).data)
        ends = [load(newest(Path("multirun/table/mine", name) / "checkpoints")).variables for name in both(seed)]
        assert result.values["weight_difference"] == max(
            float(abs(ends[0][name].astype(float) - ends[1][name].astype(float)).max()) for name in ends[0]
        )
    assert state.claims[0].verdict == "holds"
    assert state.claims[1].verdict == "undecided at 2 seeds"
    written = {path: path.read_bytes() for path in folder_of(own).glob("*/*")}
    assert len(written) == 4
    assert run(own) == 0
    assert trained(capsys) == 0, "nothing is run twice"
    for path in written:
        path.unlink()
    assert run(own) == 0
    assert trained(capsys) == 0, "finished runs are collected, not repeated"
    assert {path: path.read_bytes() for path in folder_of(own).glob("*/*")} == written


def test_a_table_uses_a_plugin_without_which_only_this_table_is_not_listed(
    own: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "table_names", lambda folders: table_names(folders[1:]))  # leaves out stored tables
    assert main(["new", "model", "my_net"]) == 0
    shutil.move("conf/model", own.parents[1])
    (own.parent / "other.yaml").write_text(own.read_text())
    replaced = {"model=mlp": "model=my_net", "model.hidden=[3]": "model.filters=2"}
    changed(own, base=[replaced.get(override, override) for override in TABLE["base"]], seeds=[1])
    listed = ["table", "list", "--config-dir", str(own.parents[1])]
    capsys.readouterr()
    assert main(listed) == 0
    out = capsys.readouterr().out
    assert re.search(r"^other +measured +0 of 4 +0 of 2 +4 +unknown +1 worker with 1 thread +Two ways$", out, re.M)
    assert re.search(r"^mine +see the error below$", out, re.MULTILINE)
    assert "mine: runs.whole: In 'model/my_net': Could not load 'schema/model/my_net'.\n" in out
    assert "give the --plugin that defines it." in out
    load_kernels()
    with restored_tables():
        assert main(["--plugin", "my_net.py", "table", "run", "mine", *listed[2:]]) == 0
        again = json.loads(Path("multirun/table/mine/plan.json").read_text())["again"]
        assert again.startswith(f"runner --plugin {Path('my_net.py').absolute()} table run mine --config-dir ")
        assert main(["--plugin", "my_net.py", *listed]) == 0
        stored = TableReader(own.parents[1]).read(own).results()["whole"].current[1]
    assert stored.configuration["model"]["filters"] == 2
    assert re.search(r"^mine +measured +4 of 4 +1 of 2 +Two ways$", capsys.readouterr().out, re.MULTILINE)


def both(seed: int) -> list[str]:
    """Return the directories of both runs with a seed, below the directory of the sweep."""
    folder = Path("multirun/table/mine")
    return [str(path.relative_to(folder)) for path in sorted(folder.glob(f"*/seed-{seed}.*"))]


def test_a_changed_design_is_run_again_and_the_earlier_values_stay(finished: Path, capsys: Capture) -> None:
    own = finished
    changed(own, runs__parts__overrides=["train.microbatches=4"])
    text = refused_run(own, capsys)
    assert "runs.parts has stored results of another configuration, with other train.microbatches" in text
    changed(own, runs__parts__overrides=["train.microbatches=4"], runs__parts__changed="two parts were too few")
    assert run(own) == 0
    out, err = capsys.readouterr()
    assert err.count("jobs ended") == 2
    assert "Earlier configuration of parts (other train.microbatches), loss: mean" in out
    assert "changed because: two parts were too few" in out
    assert len(list(folder_of(own).glob("parts/*"))) == 4


def test_the_weights_that_a_missing_value_needs_are_made_again(finished: Path, capsys: Capture) -> None:
    shutil.rmtree("multirun")
    shutil.rmtree(folder_of(finished) / "parts")
    assert run(finished, "--cells", "parts/loss") == 0
    assert trained(capsys) == 4
    assert current(TableReader().read(finished)).claims[0].verdict == "holds"


def test_a_cell_of_published_values_needs_no_run(own: Path, capsys: Capture) -> None:
    changed(own, columns__early={"title": "early", "missing": "published only"})
    assert run(own, "--cells", "*/early") == 0
    assert trained(capsys) == 0


def test_what_cannot_run_or_exceeds_the_budget_is_left_out_with_the_reason(own: Path, capsys: Capture) -> None:
    changed(own, runs__whole__overrides=["data.shape=[1,4096,4096]", "train.batch_size=24", "model.hidden=[90000]"])
    assert run(own, "--budget", "0.000001s") == 0
    err = capsys.readouterr().err
    assert "skipped: the variables of the model and the optimizer take" in err
    assert "2 skipped: over the budget" in err
    assert err.count("jobs ended") == 0


def test_a_run_whose_loss_explodes_is_a_result(own: Path, capsys: Capture) -> None:
    changed(own, runs__whole__overrides=["optimizer.lr=1e30", "train.eval_every=1"], seeds=[1])
    run(own, "--cells", "whole")
    [line, *_] = current(TableReader().read(own)).lines
    assert line.sample is not None
    assert (line.sample.not_finite, line.ours, line.verdict) == (1, None, "")
    assert "not finite (1 of 1)" in capsys.readouterr().out
    assert run(own, "--cells", "whole") == 0
    assert trained(capsys) == 0


def test_the_traceback_of_a_failed_job_is_printed_on_request(own: Path, capsys: Capture) -> None:
    changed(own, runs__whole__overrides=["optimizer.lr=1e30", "train.fail_on_divergence=true"], seeds=[1])
    assert main(["--debug", *command(own, "run", "--cells", "whole")]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_network_that_its_strategy_refuses_is_refused_before_anything_runs(own: Path, capsys: Capture) -> None:
    changed(own, runs__parts__overrides=["parallelism=async_data", "parallelism.servers=9"])
    assert "runs.parts: parallelism.servers=9" in refused_run(own, capsys)
    assert not list(folder_of(own).glob("*/*"))


def test_missing_runs_are_listed(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = [text for text in TABLE["base"] if not text.startswith("data")]
    runs = {"whole": {"overrides": ["data=digits"]}, "parts": {"overrides": ["data=mnist"], "against": "whole"}}
    changed(own, base=base, runs=runs, seeds=[1, 2])
    assert listed(own) == "measured  0 of 4  0 of 2  4  unknown  1 worker with 1 thread, data=mnist"
    assert run(own, "--cells", "whole", "--budget", "0s") == 0
    assert not list(folder_of(own).glob("*/*")), "only the time was estimated"
    known = "about N s, unknown for"
    assert listed(own) == f"measured  0 of 4  0 of 2  4  {known} 2  1 worker with 1 thread, data=mnist"
    runs["whole"]["overrides"] += ["optimizer.lr=0.02"]
    changed(own, base=base, runs=runs, seeds=[1])
    assert "  2  unknown  " in listed(own), "the estimate was that of another configuration"
    assert run(own, "--cells", "whole") == 0
    changed(own, base=base, runs=runs, seeds=[1, 2, 3])
    assert listed(own) == f"measured  2 of 4  0 of 2  5  {known} 3  1 worker with 1 thread, data=mnist"
    assert run(own, "--cells", "parts", "--budget", "1h") == 0, "missing data are replaced for the estimate only"
    assert listed(own) == "measured  2 of 4  0 of 2  3  about N s  1 worker with 1 thread, data=mnist"


@pytest.mark.parametrize(
    ("batch", "most", "expected"), [(8, 8, 8), (8, 7, 4), (8, 3, 2), (8, 0, None), (24, 23, 8), (24, 5, 4)]
)
def test_the_time_of_a_run_that_does_not_fit_follows_from_a_smaller_batch_of_one_worker(
    own: Path, capsys: Capture, batch: int, most: int, expected: int | None
) -> None:
    parallel = ["parallelism=sync_data", "parallelism.workers=2", "cluster.threads_per_worker=1"]
    changed(own, runs__whole__overrides=[f"train.batch_size={batch}", *parallel])
    tried = []

    def require(experiment: Experiment) -> None:
        if experiment.config.train.batch_size > most:
            raise ResourceError("too little memory")

    def steps(experiment: Experiment) -> FirstSteps:
        config = experiment.config
        tried.append((config.train.batch_size, config.parallelism.workers, config.cluster.threads_per_worker))
        return FirstSteps("", 2.0, (1.0,))

    with ExitStack() as patched:
        patched.enter_context(patch("runner.commands.table_run.require_memory", require))
        patched.enter_context(patch("runner.tables.checking.first_steps", steps))
        assert run(own, "--cells", "whole", "--budget", "0s") == 0
    one = (expected, 2, 1) if expected == batch else (expected, 1, usable_cores())
    assert tried == ([] if expected is None else [one])
    assert ("skipped: too little memory" in capsys.readouterr().err) == (most < batch)
    estimates = own.parents[2] / "results" / "mine" / "estimates.json"
    assert estimates.exists() == (expected is not None)
    if expected is not None:
        [estimate] = json.loads(estimates.read_text())["runs"].values()
        assert estimate["seconds"] == 4 * 2.0 * batch / expected, "four updates of 2 s with a fraction of the examples"


def test_estimates_are_stored_one_by_one(own: Path) -> None:
    steps = [FirstSteps("", 2.0, (1.0,)), KeyboardInterrupt]
    with patch("runner.tables.checking.first_steps", Mock(side_effect=steps)):
        assert run(own, "--budget", "0s") == 130
    assert len(json.loads((own.parents[2] / "results" / "mine" / "estimates.json").read_text())["runs"]) == 1


def listed(own: Path) -> str:
    """Return the line of the table in a list, without name and title; the note below the list must fit it."""
    text = _list({"mine": own}, TableReader(own.parents[1]))
    [line] = [line for line in text.splitlines() if line.startswith("mine")]
    assert ("--budget 0s" in text) == ("unknown" in line)
    line = re.sub(r"about \d+ s", "about N s", line).removeprefix("mine").removesuffix("Two ways")
    return re.sub(r" {2,}", "  ", line).strip()


def test_a_run_of_another_program_is_not_continued(finished: Path, capsys: Capture) -> None:
    shutil.rmtree(folder_of(finished))
    for path in Path("multirun/table/mine").glob("whole/*"):
        (path / "summary.json").unlink()
        begun = json.loads((path / "begun.json").read_text())
        (path / "begun.json").write_text(json.dumps({**begun, "first_steps": "0" * 64}))
    assert run(finished) == 2
    text = capsys.readouterr().err
    assert "the run of whole seed=1 was started with another program, machine or data (first_steps differ)" in text
    assert not list(folder_of(finished).glob("whole/*"))


def test_results_of_removed_seeds_and_changed_criteria_are_stated(finished: Path, capsys: Capture) -> None:
    changed(finished, seeds=[1])
    assert main(command(finished, "show")) == 0
    out = capsys.readouterr().out
    assert "Earlier configuration of whole (other seed 2, which was removed), loss: mean" in out
    assert "Seeds, columns, tolerances or claims of the file were changed after 2 of 2 runs." in out


def test_a_folder_for_the_sweep_that_cannot_be_created_is_named(own: Path, capsys: Capture) -> None:
    Path("multirun").touch()
    text = refused_run(own, capsys, code=4)
    assert f"cannot write in {Path('multirun/table/mine').absolute()}: Not a directory" in text


def test_secrets_are_not_in_results(own: Path, tmp_path: Path) -> None:
    changed(own, runs__whole__overrides=["tracking=mlflow", "tracking.uri='http://me:pass-word@host'"])
    files = TableReader(results=tmp_path / "mine").read(own)
    config = replace(files.configs["whole"], seed=1)
    path = write_result(files.folder, "whole", config, Result("measured", to_plain(config), {}, 1))
    assert "pass-word" not in path.read_text()
    assert 1 in files.results()["whole"].current


def test_timed_runs_are_not_run_together(own: Path, capsys: Capture) -> None:
    changed(own, columns__early={"title": "step", "read": "step_time_s", "unit": "ms"})
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    text = refused_run(own, capsys, *launcher)
    assert "hydra/launcher=joblib: 2 jobs would run at the same time, and the table mine measures speeds" in text
    text = refused_run(own, capsys, "train.steps=5")
    assert "train.steps=5: expected settings of the launcher, such as hydra/launcher=joblib" in text
    text = refused_run(own, capsys, "--cells", "row")
    assert "--cells row: no such cell; expected one of whole/loss, whole/early" in text


def test_a_run_needs_its_number_of_threads_and_a_network_that_its_strategy_accepts(own: Path, capsys: Capture) -> None:
    changed(own, runs__parts__overrides=["cluster.threads_per_worker=null"])
    text = refused(command(own, "show"), capsys)
    assert "runs.parts: cluster.threads_per_worker is null; expected a number" in text


def test_weights_of_different_networks_are_not_compared(tmp_path: Path) -> None:
    for name, shape in (("one", (2,)), ("other", (3,))):
        save(tmp_path / name / "checkpoints", step=1, variables={"w": np.zeros(shape)}, meta=META)
    with pytest.raises(ConfigError, match="expected runs with the same variables, but w differs"):
        weight_difference(tmp_path / "one", tmp_path / "other")
    with pytest.raises(ConfigError, match="expected a run with a checkpoint"):
        weight_difference(tmp_path, tmp_path)


def test_the_difference_of_weights_is_nan_if_one_weight_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {Path(run): {"a": np.array([1.0]), "b": np.array([last])} for run, last in (("one", 2.0), ("two", math.nan))}
    monkeypatch.setattr(measured, "_variables", runs.__getitem__)
    assert math.isnan(weight_difference(Path("one"), Path("two")))


def test_the_digest_of_the_data_is_that_of_its_contents() -> None:
    first, equal, other = (Synthetic(shape=[1, 4, 4], data_seed=seed) for seed in (0, 0, 1))
    assert data_digest(first) == data_digest(equal) != data_digest(other)


@pytest.mark.slow
def test_results_are_stored_as_jobs_of_another_process_end(own: Path, capsys: Capture) -> None:
    """Two processes run four jobs; the results of the first jobs are stored before the last job ends."""
    counts = []
    collect = TableSweep._collect

    def counted(sweep: TableSweep, *arguments: Any) -> None:
        collect(sweep, *arguments)
        counts.append(len(list(folder_of(own).glob("*/*"))))

    with patch.object(TableSweep, "_collect", counted):
        assert run(own, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2") == 0
    assert counts[-1] == 4
    assert any(0 < stored < 4 for stored in counts), counts


def test_the_sweep_of_a_table_is_continued_by_the_table(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(finished, "--cells", "whole", "--results", str(tmp_path / "mine")) == 0
    assert trained(capsys) == 0
    text = refused(["sweep", "resume", "multirun/table/mine"], capsys)
    again = f"runner table run mine --config-dir {finished.parents[1]} --results {tmp_path / 'mine'}"
    assert f"the jobs belong to a table, which stores their results; use: {again}" in text


def test_a_table_is_one_parent_run_with_named_children(own: Path) -> None:
    from mlflow.tracking import MlflowClient

    changed(own, base=TABLE["base"][:-2])
    assert run(own) == 0
    client = MlflowClient(f"sqlite:///{Path('mlflow.db').absolute()}")
    runs = {each.info.run_name: each for each in client.search_runs(["1"])}
    parent = runs.pop("table mine")
    assert set(runs) == {f"{name} seed={seed}" for name in ("whole", "parts") for seed in (1, 2)}
    assert {each.data.tags["mlflow.parentRunId"] for each in runs.values()} == {parent.info.run_id}
    assert parent.data.tags["mlflow.note.content"].startswith("## Two ways (measured)")
    files = {"table.md", "table.csv", "table.json", "table.tex", "table.png"}
    assert {path.name for path in Path("multirun/table/mine").glob("table.*")} == files
    assert {each.path for each in client.list_artifacts(parent.info.run_id)} >= files
    assert (parent.data.metrics["claims"], parent.data.metrics["claims_hold"]) == (2, 1)
    assert (parent.data.metrics["cells"], parent.data.metrics["cells_with_value"]) == (4, 4)
