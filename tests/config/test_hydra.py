"""Hydra's command line, the folder of YAML files, nested configuration groups, and debug presets."""

import dataclasses
import re
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from runner.commands.help_text import help_text, options
from runner.config import conf_dir as module
from runner.config.check import training_facts
from runner.config.command_line import misplaced_verb, overrides_first, quoted, quoting_hint
from runner.config.conf_dir import NestedGroup, conf_dir, nested_groups
from runner.config.hydra_app import compose_jobs
from runner.data.augmentation import Augment
from runner.data.settings import limited_facts
from runner.errors import ConfigError, ResourceError, RunnerError
from runner.strategies.downpour.pushed_server import POLICIES, Staleness
from runner.training.build import build
from runner.training.run import run
from tests.small_runs import composed_config as composed
from tests.small_runs import small_config


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty package folder in a checkout; the module ``conf_dir`` appears to be in this folder."""
    folder = tmp_path / "checkout" / "runner"
    folder.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(folder / "config" / "conf_dir.py"))
    return folder


def test_yaml_files_are_in_the_package_or_else_next_to_it_in_a_checkout(package: Path):
    with pytest.raises(ResourceError, match=r"no configuration files at .*runner/conf and .*checkout/conf: reinstall"):
        conf_dir()
    for parent in (package.parent, package):
        (parent / "conf").mkdir()
        (parent / "conf" / "config.yaml").touch()
        assert conf_dir() == parent / "conf"


ASYNC_DATA = "parallelism=async_data"
BOUNDED = "parallelism/staleness=bounded"


@pytest.mark.parametrize(
    ("overrides", "staleness"),
    [
        ([ASYNC_DATA], Staleness()),
        ([ASYNC_DATA, BOUNDED], Staleness("bounded", 4)),
        ([ASYNC_DATA, BOUNDED, "parallelism.staleness.limit=9"], Staleness("bounded", 9)),
        (["parallelism=downpour", "parallelism/staleness=scale"], Staleness("scale")),
        ([ASYNC_DATA, "parallelism/staleness=drop"], Staleness("drop", 4)),
        ([ASYNC_DATA, "parallelism.staleness.policy=drop", "parallelism.staleness.limit=3"], Staleness("drop", 3)),
        ([ASYNC_DATA, "parallelism/staleness=drop", "parallelism.staleness.policy=bounded"], Staleness("bounded", 4)),
    ],
)
def test_a_staleness_policy_is_chosen_as_a_group_or_by_its_keys(overrides: list[str], staleness: Staleness) -> None:
    assert small_config(*overrides).parallelism.staleness == staleness


def test_every_staleness_policy_is_an_option_and_every_asynchronous_strategy_has_the_group() -> None:
    found = {group.name: group for group in nested_groups(conf_dir())}
    defaults = {"async_data": "none", "downpour": "none"}
    staleness = "parallelism/staleness"
    assert found[staleness] == NestedGroup(staleness, tuple(sorted(POLICIES)), defaults)


def test_help_lists_a_nested_group_separately() -> None:
    assert "staleness" not in options(conf_dir())["parallelism"]
    text = help_text(conf_dir(), {})
    assert "\n  parallelism/staleness  bounded, drop, none*, scale  (of async_data, downpour)\n" in text


NO_GROUP = (
    r"^parallelism/staleness: the chosen option of parallelism has no such group; use parallelism=async_data, "
    r"parallelism=downpour, or leave out parallelism/staleness$"
)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("parallelism=sync_data", BOUNDED), NO_GROUP),
        (("parallelism=hybrid", BOUNDED), NO_GROUP),
        (
            ("parallelism=sync_data", f"+{BOUNDED}"),
            r"^parallelism\.staleness: no such key; it is a key of parallelism=async_data\nKeys of parallelism=sync",
        ),
        (
            (ASYNC_DATA, "parallelism/staleness=late"),
            r"^parallelism/staleness=late: no such option; [^\n]*\nOptions of parallelism/staleness: bounded, drop, n",
        ),
    ],
)
def test_a_policy_that_the_strategy_does_not_have_is_refused(overrides: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        small_config(*overrides)


DELAY = "cluster.hardware.disturbances.delays.slow"
NO_ENTRY = r"to add an entry, write it in a YAML file of its group and give --config-dir DIR$"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (f"{DELAY}.median_ms=5", rf"^{re.escape(DELAY)}: no such entry\n.*{NO_ENTRY}"),
        (f"{DELAY}={{at:w,median_ms:5}}", rf"^{re.escape(DELAY)}: no such entry\n.*{NO_ENTRY}"),
        (f"+{DELAY}={{at:w,median_ms:5}}", rf"^Error merging override \+{re.escape(DELAY)}=(.|\n)*{NO_ENTRY}"),
    ],
)
def test_an_entry_that_no_file_has_is_refused_with_advice(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        composed("cluster=k20x8", override)


INPUT = "cluster.hardware.disturbances.input"


@pytest.mark.parametrize(
    ("override", "section"),
    [
        (f"{INPUT}={{at:w,examples_per_s:100}}", INPUT),
        (f"+{INPUT}={{at:w,examples_per_s:100}}", INPUT),
        (f"{INPUT}.at=w", INPUT),
        ("cluster=local cluster.hardware.step_us=3", "cluster.hardware"),
        ("cluster=local cluster.hardware.workers.kind=cpu", "cluster.hardware"),
        ("cluster=local cluster.hardware={step_us:3}", "cluster.hardware"),
    ],
)
def test_a_section_that_is_null_is_not_changed_and_the_error_says_what_to_do(override: str, section: str) -> None:
    *chosen, changed = override.split()
    complaint = rf"^{re.escape(f'{changed}: {section}')}, or .* is null\nThe command line .* give --config-dir DIR$"
    with pytest.raises(ConfigError, match=complaint):
        composed(*(chosen or ["cluster=k20x8"]), "seed=3", changed)


def test_a_folder_without_options_is_not_a_group(tmp_path: Path) -> None:
    (tmp_path / "group" / "empty").mkdir(parents=True)
    (tmp_path / "group" / "option.yaml").write_text("defaults: [empty: none]\n")
    assert list(nested_groups(tmp_path)) == []


def no_batch(jobs: object) -> list[float | RunnerError]:
    raise AssertionError(jobs)


def test_jobs_of_a_sweep_are_composed_together_each_with_its_number(folder: Path, monkeypatch: pytest.MonkeyPatch):
    composed = []

    def load(loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        composed.append(sweep_overrides)
        return compose_one(loader, master_config, sweep_overrides)

    compose_one = ConfigLoaderImpl.load_sweep_config
    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", load)
    numbered = ["hydra.sweep.dir=sweep", "hydra.sweep.subdir=job-${hydra.job.num}-${hydra.job.id}"]
    jobs = compose_jobs(["-m", "seed=3,1,3", *numbered], no_batch)
    assert composed == [[]]  # the jobs choose the same options
    found = [(job.sweep.number, job.config().seed, job.run_dir.name) for job in jobs if job.sweep]
    assert found == [(0, 3, "job-0-0"), (1, 1, "job-1-1"), (2, 3, "job-2-2")]


def test_a_sweep_can_be_requested_by_its_mode_and_by_the_users_files(folder: Path):
    """Hydra's application composes sweeps and paths with ``${hydra:...}``; other runs are composed without it."""
    dirs = ["hydra.run.dir=run", "hydra.sweep.dir=sweep"]
    assert len(compose_jobs(["hydra.mode=MULTIRUN", "seed=1,2", *dirs], no_batch)) == 2
    (folder / "own" / "experiment").mkdir(parents=True)
    text = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '1,2,3'}}}\n"
    (folder / "own" / "experiment" / "swept.yaml").write_text(text)
    assert len(compose_jobs(["--config-dir", "own", "experiment=swept", *dirs], no_batch)) == 3
    (job,) = compose_jobs(["hydra.run.dir=${hydra:job.name}/run"], no_batch)
    assert (job.sweep, job.run_dir) == (None, folder / "runner" / "run")


def test_a_job_that_cannot_be_composed_is_refused_before_any_has_a_directory(folder: Path):
    with pytest.raises(ConfigError, match="'fast' of type 'str'"):
        compose_jobs(["-m", "optimizer.lr=0.1,fast", "hydra.sweep.dir=sweep"], no_batch)
    assert [path.name for path in (folder / "sweep").iterdir()] == ["multirun.yaml"]


@pytest.mark.parametrize(
    ("typed", "understood"),
    [
        ([], []),
        (["a=1", "-m", "b=1,2"], ["a=1", "b=1,2", "-m"]),
        (["--cfg", "job", "a=1", "--package", "model"], ["a=1", "--cfg", "job", "--package", "model"]),
        (["--pack", "model", "a=1"], ["a=1", "--pack", "model"]),
        (["-cd", "lr=1/conf", "~b", "-cn", "mine", "+c=2"], ["~b", "+c=2", "-cd", "lr=1/conf", "-cn", "mine"]),
        (["--config-dir=conf", "a=1"], ["a=1", "--config-dir=conf"]),
        (["-sc", "install=bash"], ["install=bash", "-sc"]),
    ],
    ids=" ".join,
)
def test_overrides_come_first_and_options_keep_their_values(typed: list[str], understood: list[str]):
    assert overrides_first(typed) == understood


def test_fixed_settings_follow_overrides_and_precede_options():
    assert overrides_first(["a=1", "--info", "-m", "b=2"], last=["c=3"]) == ["a=1", "b=2", "c=3", "--info", "-m"]


def test_a_verb_is_found_after_options_but_not_as_the_value_of_an_option():
    assert misplaced_verb(["--config-dir", "conf", "list", "models"], {"list"}) == "list"
    assert misplaced_verb(["--config-name", "list", "a=1"], {"list"}) is None


@pytest.mark.parametrize(
    ("override", "typed"),
    [
        ("init_from=runs/lr=0.1", """'init_from="runs/lr=0.1"'"""),
        ("hydra.run.dir=my run é", """'hydra.run.dir="my run é"'"""),
        ('data.path=a"b', """'data.path="a\\"b"'"""),
        ("data.path=a\\b c", """'data.path="a\\b c"'"""),
        ("seed=[1", ""),
        ("list", ""),
    ],
)
def test_values_that_need_quotes_are_shown_with_them(override: str, typed: str):
    hint = quoting_hint(override)
    assert hint.endswith(typed)
    assert bool(hint) == bool(typed)


@given(st.text("ab \\'\"=,$é"), st.sampled_from("'\""))
def test_a_quoted_value_is_read_back_unchanged(text: str, sign: str):
    assert OverridesParser.create().parse_override(f"key={quoted(text, sign)}").value() == text


SANDBLASTER = ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.batch_size=64")
STRATEGIES = [
    ("parallelism=single",),
    ("parallelism=sync_data",),
    ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"),
    ("parallelism=async_data",),
    ("parallelism=downpour",),
    ("parallelism=model",),
    ("parallelism=hybrid",),
    SANDBLASTER,
]


def test_preset_fast_trains_a_few_steps_with_checks() -> None:
    config = composed("+debug=fast", "experiment=mnist_lenet")
    assert (config.train.steps, config.train.epochs, config.debug.check_finite) == (25, None, True)
    assert (limited_facts(config.data).train_examples, limited_facts(config.data).test_examples) == (512, 128)
    assert config.model.name == "lenet"


def test_preset_overfit_uses_a_few_examples_without_augmentation() -> None:
    config = composed("+debug=overfit", "experiment=cifar10_convnet")
    assert limited_facts(config.data).train_examples == 32
    assert config.data.augment == Augment()
    preset = OmegaConf.load(conf_dir() / "debug" / "overfit.yaml")
    assert set(preset.data.augment) == {field.name for field in dataclasses.fields(Augment)} - {"others"}


def test_preset_profile_records_a_timeline_within_its_steps() -> None:
    config = composed("+debug=profile")
    assert config.trace
    assert config.train.steps is not None
    assert config.trace_skip + config.trace_steps < config.train.steps


@pytest.mark.parametrize("preset", ["fast", "overfit", "profile"])
def test_the_command_line_overrides_a_preset(preset: str) -> None:
    config = composed(f"+debug={preset}", "train.epochs=2", "data.test_limit=null", "debug.check_finite=false")
    assert (config.train.epochs, config.train.steps) == (2.0, None)
    assert config.data.test_limit is None
    assert not config.debug.check_finite


@pytest.mark.parametrize("overrides", STRATEGIES, ids=lambda overrides: overrides[0])
def test_presets_can_be_built_for_every_strategy(overrides: tuple[str, ...]) -> None:
    for preset, trace in (("fast", (False, 5)), ("overfit", (False, 5)), ("profile", (True, 5))):
        experiment = build(small_config("train.steps=25", f"+debug={preset}", *overrides))
        assert experiment.total_steps == 25
        assert (experiment.config.trace, experiment.config.trace_steps) == trace


EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_presets_fit_every_experiment(experiment: str) -> None:
    """Check the data and the lengths of the experiments. The tests of ``training`` build the programs."""
    for preset, steps in (("fast", 25), ("overfit", 300), ("profile", 30)):
        config = composed(f"+debug={preset}", f"experiment={experiment}")
        known = dataclasses.replace(training_facts(config), total_steps=steps)
        assert config.train.steps == steps
        assert list(config.parallelism.faults(known)) == []


def test_a_run_with_preset_overfit_learns_its_examples_completely(tmp_path: Path) -> None:
    config = small_config("+debug=overfit", "model.hidden=[64]", "train.steps=150")
    summary = run(config, tmp_path / "run", overrides=())
    assert summary.final["train/loss"] < 0.1
    assert summary.final["train/accuracy"] == 1.0
