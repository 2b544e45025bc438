"""Callbacks of plugins: chosen and checked in the configuration, stored with it, and called in its order."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import runner
from runner.cli import main
from runner.config.configuration import from_plain, load_stored, to_plain
from runner.config.outcome import differing_keys, outcome_hash
from runner.errors import ConfigError
from runner.plugin import install
from runner.records.summary import Summary
from runner.training.run import run
from tests.fake_training import FakeTraining
from tests.refusal import Capture, refused
from tests.small_runs import SMALL, SMALL_MODEL, small_config

PLUGIN = """
from dataclasses import dataclass
from pathlib import Path
from runner.bounds import Count
from runner.callback import Callback, StopTraining
from runner.plugin import Plugin

@dataclass
class First(Callback):
    name: str = "first"
    text: str = "1"

    def on_step(self, step, loss):
        with Path("calls").open("a") as file:
            file.write(f"{self.text}{step} ")
        self.text += "!"  # a setting that changes during the run

@dataclass
class Limit(First):
    name: str = "limit"
    text: str = "2"
    steps: Count = 3

    def __post_init__(self):
        self.count = 0

    def on_step(self, step, loss):
        super().on_step(step, loss)
        self.count += 1
        if self.count == self.steps:
            raise StopTraining(f"{self.count} steps")

plugin = Plugin(callbacks={"first": First, "limit": Limit})
"""
FEW = (*SMALL, *SMALL_MODEL, "train.steps=5")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the plugin into the working directory and return its file."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN)
    return "mine.py"


@pytest.mark.parametrize(
    ("chosen", "order"),
    [
        (["--config-dir=own", "callbacks=[limit,one]"], ["limit", "first"]),
        (["callbacks.first.text=1", "callbacks.limit={}"], ["first", "limit"]),
        (["+callbacks.limit.steps=3", "+callbacks.first={}"], ["limit", "first"]),
        (["callbacks={limit: {steps: 3}, first: {}}"], ["limit", "first"]),
        (["--config-dir=own", "callbacks=both"], ["first", "limit"]),
    ],
)
def test_the_command_line_and_files_choose_callbacks_in_an_order(
    chosen: list[str], order: list[str], plugin: str, fake_training: FakeTraining
) -> None:
    Path("own/callbacks").mkdir(parents=True)
    files = {"one": "first: {}", "limit": "limit: {steps: 3}", "both": "first: {text: '1'}\nlimit: {}"}
    for name, text in files.items():
        Path(f"own/callbacks/{name}.yaml").write_text(text)
    assert main([f"--plugin={plugin}", *chosen, *FEW]) == 0
    settings = {"first": {"name": "first", "text": "1"}, "limit": {"name": "limit", "text": "2", "steps": 3}}
    stored = to_plain(fake_training.only.config)["callbacks"]
    assert list(stored.items()) == [(name, settings[name]) for name in order]


def test_a_run_calls_its_callbacks_in_order_and_stores_them(plugin: str) -> None:
    """A repeated and a resumed run use the stored settings, not the settings that the run has changed."""
    assert main([f"--plugin={plugin}", "callbacks={limit: {steps: 3}, first: {}}", *FEW, "hydra.run.dir=run"]) == 0
    calls = ["21", "11", "2!2", "1!2", "2!!3", "1!!3"]
    assert Path("calls").read_text().split() == calls
    summary = Summary.read(Path("run/summary.json"))
    assert (summary.status, summary.stopped) == ("finished", "after step 3 of 5: Limit: 3 steps")
    assert list(yaml.safe_load(Path("run/config.yaml").read_text())["callbacks"]) == ["limit", "first"]
    Path("calls").unlink()
    assert main(["rerun", f"--plugin={plugin}", "run"]) == 0
    assert Path("calls").read_text().split() == calls
    assert main([f"--plugin={plugin}", "resume=run", "callbacks.limit.steps=1"]) == 0
    assert Summary.read(Path("run/summary.json")).stopped == "after step 4 of 5: Limit: 1 steps"


@pytest.mark.parametrize(
    ("callbacks", "complaint"),
    [
        ({"frist": {}}, ".frist: no such callback; did you mean 'first'?\nCallbacks of the plugins: first, limit"),
        ({"limit": {"step": 3}}, ".limit.step: no such key; did you mean 'steps'?\nKeys of callbacks.limit: name"),
        ({"limit": {"steps": "a"}}, ".limit.steps: Value 'a' of type 'str' could not be converted to Integer"),
        ({"limit": {"steps": 0}}, ".limit.steps=0: expected 1"),
        ({"limit": None}, ".limit: expected a section of keys, or {} for the defaults, found None"),
        ({"limit": {"name": "first"}}, ".limit: expected a section of keys, or {} for the defaults, found"),
        ({"limit": {"text": "???"}}, ".limit.text: missing value"),
        (["limit"], ": expected names with settings, callbacks.NAME.KEY=VALUE, found ['limit']"),
    ],
)
def test_callbacks_that_do_not_fit_are_refused(callbacks: Any, complaint: str, plugin: str) -> None:
    install([plugin])
    plain = to_plain(small_config())
    with pytest.raises(ConfigError) as caught:
        from_plain(plain | {"callbacks": callbacks})
    assert str(caught.value).startswith(f"callbacks{complaint}")
    del plain["callbacks"]  # as in a configuration of an earlier version
    assert from_plain(plain).callbacks == {}


LIMIT = "callbacks.limit.steps"


def test_callbacks_count_among_the_keys_that_change_the_values_of_a_run(plugin: str) -> None:
    install([plugin])
    without, two, three = (small_config(*given) for given in ([], [f"{LIMIT}=2"], [f"{LIMIT}=3"]))
    assert differing_keys(to_plain(without), to_plain(two)) == ["callbacks.limit"]
    assert differing_keys(to_plain(two), to_plain(three)) == ["callbacks.limit"]
    assert differing_keys(to_plain(two), to_plain(two)) == []
    earlier = {key: value for key, value in to_plain(without).items() if key != "callbacks"}
    assert differing_keys(earlier, to_plain(without)) == []
    assert len({outcome_hash(config) for config in (without, two, three)}) == 3


@pytest.mark.parametrize("given", ["callbacks.limit.steps=1", "callbacks.limit={}", "callbacks={limit:{}}"])
def test_without_its_plugin_a_callback_is_refused(given: str, tmp_path: Path, capsys: Capture) -> None:
    message = refused([given, *FEW], capsys)
    assert "callbacks.limit: no such callback\nCallbacks of the plugins: none\n" in message
    assert "give the --plugin that defines it" in message


def test_a_callback_without_a_yaml_file_is_not_chosen_like_an_option(plugin: str, capsys: Capture) -> None:
    message = refused([f"--plugin={plugin}", "callbacks=limit", *FEW], capsys)
    assert "callbacks=limit: no such file of callbacks; write callbacks.limit={} or callbacks.limit.KEY=" in message


def test_python_and_sweeps_choose_callbacks(plugin: str) -> None:
    install([plugin])
    callbacks = runner.compose(FEW, callbacks={"limit": {"steps": 2}, "first": {}}).callbacks
    assert [(name, each.text) for name, each in callbacks.items()] == [("limit", "2"), ("first", "1")]
    first = runner.run(FEW, callbacks={"limit": {"steps": 2}}, directory="run")
    assert first.summary.stopped == "after step 2 of 5: Limit: 2 steps"
    assert list(first.summary.plugins) == [str(Path(plugin).absolute())], "the command line can repeat the run"
    more = {"limit": {"steps": 1}, "first": {"text": "9"}}
    assert first.resume(callbacks=more).summary.steps == 3
    assert (list(first.config.callbacks), first.config.callbacks["first"].text) == (["limit", "first"], "9")
    found = runner.sweep(FEW, callbacks={"first": {}, "limit": {"steps": [1, 4]}}, directory="sweep")
    assert [each.summary.steps for each in found.runs] == [1, 4]
    assert load_stored(Path("sweep/1/config.yaml")).callbacks["limit"].steps == 4


def test_each_run_calls_new_callbacks_before_those_of_the_session(plugin: str) -> None:
    class Last(runner.Callback):
        def on_step(self, step: int, loss: float) -> None:
            with Path("calls").open("a") as file:
                file.write(f"3{step} ")

    install([plugin])
    config = small_config("callbacks.limit.steps=2")
    for directory in ("a", "b"):
        run(config, Path(directory), overrides=[], callbacks=[Last()])
    assert Path("calls").read_text().split() == ["21", "31", "2!2", "32"] * 2


@pytest.mark.slow
def test_the_jobs_of_a_parallel_sweep_call_their_callbacks(plugin: str) -> None:
    sweep = ("-m", "callbacks.limit.steps=1,4", "hydra/launcher=joblib", "hydra.sweep.dir=sweep")
    assert main([f"--plugin={plugin}", *sweep, *FEW]) == 0
    assert [Summary.read(Path(f"sweep/{job}/summary.json")).steps for job in (0, 1)] == [1, 4]
