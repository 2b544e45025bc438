"""Without a library of fast kernels a run uses the remaining ones and reports the missing one."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.kernels.cpu.onednn.library import SETTING
from runner.records.summary import Summary
from tests.integration.command import QUIET, Command, summary_of

SMALL = (
    *QUIET,
    "model=lenet",
    "data=digits",
    "parallelism=single",
    "hydra.run.dir=run",
    "train.steps=2",
    "train.eval_every=1000",
)


@dataclass(frozen=True)
class Ended:
    """What a run left: its summary, its log and the loss of its first step."""

    summary: Summary
    log: str
    first_loss: float

    @property
    def libraries(self) -> set[str]:
        """Those whose kernels it used."""
        return set(self.summary.kernels["cpu"].split("+"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The same run with all libraries, without oneDNN, and without llvmlite; side by side."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "llvmlite.py").write_text("raise ImportError('not for this CPU')\n", encoding="utf-8")
    search_path = os.pathsep.join(filter(None, [str(broken), os.environ.get("PYTHONPATH")]))
    environments = {"all": {}, "no onednn": {SETTING: "/missing"}, "no llvm": {"PYTHONPATH": search_path}}
    folders = {name: tmp_path_factory.mktemp("run") for name in environments}
    commands = [Command(folders[name], *SMALL, environment=each) for name, each in environments.items()]
    codes = [command.finish() for command in commands]
    assert codes == [0] * len(commands), [command.errors for command in commands]
    return {name: _ended(folder / "run") for name, folder in folders.items()}


def _ended(run: Path) -> Ended:
    first, *_ = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert first["step"] == 1
    return Ended(summary_of(run), (run / "run.log").read_text(encoding="utf-8"), first["values"]["train/loss"])


def test_without_onednn_the_reference_kernels_compute_the_layers(runs: dict[str, Ended]) -> None:
    run = runs["no onednn"]
    assert run.libraries == {"llvm", "numpy"}
    ((name, reason),) = run.summary.kernels_missing.items()
    assert name == "onednn"
    assert reason.startswith("libdnnl.so.3 could not be loaded; tried /missing: ")
    assert reason.endswith("; RUNNER_LIBDNNL names a file; let it name another, or unset it")
    assert f"WARNING runner.training.run: no kernels of onednn, slower ones are used: {reason}\n" in run.log
    assert "INFO runner.training.run: kernels of llvm " in run.log
    assert run.first_loss == pytest.approx(runs["all"].first_loss, rel=1e-5)


def test_without_llvmlite_no_kernel_is_compiled(runs: dict[str, Ended]) -> None:
    run = runs["no llvm"]
    assert run.libraries == {"numpy", "onednn"}
    reason = "llvmlite cannot be loaded (not for this CPU); pip install llvmlite"
    assert run.summary.kernels_missing == {"llvm": reason}
    assert f"WARNING runner.training.run: no kernels of llvm, slower ones are used: {reason}\n" in run.log
    assert "INFO runner.training.run: kernels of onednn " in run.log
    assert run.first_loss == pytest.approx(runs["all"].first_loss, rel=1e-5)


def test_with_all_libraries_none_is_reported_missing(runs: dict[str, Ended]) -> None:
    assert runs["all"].libraries == {"llvm", "numpy", "onednn"}
    assert runs["all"].summary.kernels_missing == {}
    assert "slower ones are used" not in runs["all"].log
