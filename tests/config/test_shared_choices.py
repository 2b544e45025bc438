"""Configurations that share choices of options: each equals the configuration that Hydra composes for it alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, OmegaConf

from runner.config import hydra_sweep
from runner.config.conf_dir import conf_dir
from runner.config.hydra_app import RunComposer, compose, compose_jobs
from runner.errors import ConfigError
from runner.tables.table_file import read_table, table_names
from tests.config.test_hydra import no_batch

PATHS = table_names([conf_dir()])
FEW = ["backup_workers", "whitepaper_batch"]
NAMES = [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in PATHS if name not in FEW)]


def require_equal(ours: DictConfig, hydras: DictConfig) -> None:
    """Compare keys with their order, values without resolved interpolations, types, and whether keys can be added."""
    assert OmegaConf.to_yaml(ours) == OmegaConf.to_yaml(hydras)
    assert ours == hydras
    assert OmegaConf.is_struct(ours) == OmegaConf.is_struct(hydras)
    for section in hydras:
        assert OmegaConf.get_type(ours, str(section)) is OmegaConf.get_type(hydras, str(section))


@pytest.mark.parametrize("name", NAMES)
def test_the_runs_of_a_table_equal_those_of_hydra(name: str) -> None:
    table, composer = read_table(PATHS[name]), RunComposer()
    for run in table.runs:
        require_equal(composer.compose(table.overrides(run)), compose(table.overrides(run)).composed)


OVERRIDES = [
    [],
    ["optimizer.clip_norm=null", "train.epochs=3", "train.epochs=4"],
    ["optimizer={lr: 0.5, clip_norm: null}"],
    ["optimizer.rules=[{match:'*/bias',lr_factor:2.0,schedule:{name:step,boundaries:[0.5]}}]"],
    ["model=mlp", "model.hidden=[7, 8]", "+callbacks.note={text: 'a, b'}", "++seed=4"],
    ["optimizer.lr=${train.batch_size}", "train.monitor='test/${task.name}'"],
    ["~callbacks", "experiment=mnist_lenet", "data.augment.flip=true"],
    ["parallelism=async_data", "parallelism/staleness=bounded", "parallelism.staleness.limit=9"],
    ["+debug=fast", "model=mlp"],
    ["model=mlp", "model.hidden=[9]"],
]


def test_all_kinds_of_overrides_have_their_effect_and_none_on_the_next_run() -> None:
    composer, hydras = RunComposer(), [compose(overrides).composed for overrides in OVERRIDES]
    pairs = list(zip(OVERRIDES, hydras, strict=True))
    for overrides, each in [*pairs, *reversed(pairs)]:
        require_equal(composer.compose(overrides), each)


@pytest.mark.parametrize(
    "override", ["model=no_such", "no_such.key=1", "optimizer.lr=fast", "seed=1,2", "+seed=1", "~train.no_such", "a"]
)
def test_an_override_is_refused_as_hydra_refuses_it(override: str) -> None:
    with pytest.raises(ConfigError) as hydras:
        compose(["task=classification", override])
    with pytest.raises(ConfigError) as ours:
        RunComposer().compose(["task=classification", override])
    assert "index" not in str(ours.value)
    assert str(ours.value) == str(hydras.value)


def test_settings_of_hydra_in_yaml_files_are_ignored_and_among_overrides_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(
        "# @package _global_\ndefaults: [override /model: mlp, override /hydra/launcher: joblib]\n"
        "hydra: {launcher: {n_jobs: 2}}\nseed: 9\n"
    )
    composer = RunComposer(tmp_path)
    require_equal(composer.compose(["experiment=own"]), compose(["experiment=own"], config_dir=tmp_path).composed)
    for setting in ("hydra.run.dir=here", "hydra/launcher=joblib"):
        with pytest.raises(ConfigError, match=f"{setting}: expected an override of a run, not a setting of Hydra"):
            composer.compose([setting])


def test_jobs_of_a_sweep_equal_those_of_hydra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also Hydra's settings are equal: the overrides of the job, the chosen options, and the name of its directory."""
    compared = []
    original = hydra_sweep.composed_jobs

    def checked(loader: ConfigLoaderImpl, sweep: DictConfig) -> Callable[[Sequence[str]], DictConfig]:
        composed = original(loader, sweep)

        def job(overrides: Sequence[str]) -> DictConfig:
            require_equal(composed(overrides), loader.load_sweep_config(sweep, list(overrides)))
            compared.append(overrides)
            return composed(overrides)

        return job

    monkeypatch.setattr(hydra_sweep, "composed_jobs", checked)
    swept = ["model=mlp,lenet", "optimizer.lr=0.1,${train.batch_size}", "optimizer={clip_norm: 2}"]
    compose_jobs(["-m", *swept, "hydra.sweep.dir=sweep", "hydra/launcher=joblib"], no_batch)
    assert len(compared) == 4
