"""Arguments of the command line: refusals with their exit codes, the device of an evaluation, and plugins."""

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands import plugins
from runner.commands.plugins import install_plugins, split_plugins
from runner.commands.stored_network import split_device, with_device
from runner.config.schema import Config, LocalCluster
from runner.errors import ConfigError
from runner.plugin import provenance
from tests.fake_training import FakeTraining
from tests.plugin_tables import EXAMPLES, restored_tables
from tests.refusal import Capture, refused
from tests.small_runs import small_config

SMALL_RUN = ("model=mlp", "parallelism=single", "tracking=none")


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        (["model.filtres=3"], ["model.filtres: no such key; did you mean 'filters'?", "Keys of model=lenet: name, "]),
        (["modle=lenet"], ["modle: no such key; did you mean 'model'?"]),
        (["+optimizer.foo=1"], ["optimizer.foo: no such key\nKeys of optimizer=momentum: name, lr"]),
        (["+stray=1"], ["stray: no such key", "\nKeys of the top level: seed, precision"]),
        (["+model._target_=os.system"], ["model._target_: no such key"]),
        (
            ["optimizer.lr=fast"],
            ["override optimizer.lr=fast", "optimizer.lr: Value 'fast' of type 'str' could not be converted to Float"],
        ),
        (["train.batch_size=2.5"], ["train.batch_size: Value '2.5' of type 'float' could not be converted to Integer"]),
        (["model=lenet5"], ["model=lenet5: no such option; did you mean 'lenet'?"]),
        (["experiment=none"], ["experiment=none: no such option; for an option in your own YAML files, give"]),
        (["seed=null"], ["seed: field 'seed' is not Optional"]),
        (["seed=???"], ["seed: missing value"]),
        (["~model"], ["model: missing value"]),
        (["model=null"], ["model=null: Config group override must be a string or a list"]),
        (["init_from=runs/lr=0.1"], ["mismatched input '='", """'init_from="runs/lr=0.1"'"""]),
        (["eval"], ["the following arguments are required: CHECKPOINT", "; see `runner eval --help`\n"]),
        (["worker", "--parent", "1"], ["arguments are required: --join, --key"]),
        (["list", "model"], ["invalid choice: 'model'"]),
        (["sync", "nowhere"], ["nowhere: no such directory; expected the directory of a run or sweep"]),
        (["doctor", "--plugin", "mine.py"], ["--plugin mine.py: `runner doctor` uses no plugins; leave it out"]),
        (["seed=[1"], ["no viable alternative"]),
        (["train.batch_size=1"], ["train.batch_size=1 is smaller than parallelism.workers=2"]),
        (["model.units=${oc.env:NO_SUCH_VARIABLE}"], ["Environment variable 'NO_SUCH_VARIABLE' not found"]),
        (["--config-dir", "absent"], ["--config-dir absent: no such directory"]),
        (["list", "models", "--config-dir", "absent"], ["--config-dir absent: no such directory"]),
        (["table", "list", "--config-dir", "absent"], ["--config-dir absent: no such directory"]),
        (["hydra/job_logging=default"], ["cannot be changed; the setting is always hydra/job_logging=none"]),
        (["hydra.job.chdir=true"], ["hydra.job.chdir: only the jobs of a sweep (-m) use this setting; leave it out"]),
        (["+hydra.job.env_set.A=1"], ["hydra.job.env_set: only the jobs of a sweep (-m) use this setting"]),
        (["-cn", "absent"], ["Cannot find primary config 'absent'"]),
        (["--cfg", "job", "--package", "absent"], ["package 'absent' not found in config"]),
        (["-m", "seed=1,2", "~hydra.callbacks.runner"], ["'hydra.callbacks.runner' does not exist"]),
        (["--no-such-option"], ["--no-such-option: no such option; keys are set by KEY=VALUE; see `runner --help`"]),
        (["--config-dir", "conf", "list"], ["verb 'list' after --config-dir: expected the verb first"]),
        (["-m", "--cfg", "job"], ["Only one of --run, --multirun, --cfg"]),
        (["-m", "seed=1,2", "optimizer.lr=fast,slow"], ["optimizer.lr: Value 'fast' of type 'str'"]),
    ],
    ids=" ".join,
)
def test_a_configuration_error_exits_with_2_and_names_the_key(
    fake_training: FakeTraining, capsys: Capture, arguments: list[str], complaints: list[str]
):
    message = refused(arguments, capsys)
    for complaint in complaints:
        assert complaint in message
    assert "HYDRA_FULL_ERROR" not in message
    assert "To append" not in message
    assert not fake_training.calls


@pytest.mark.parametrize(
    ("line", "answer", "listed"),
    [
        ("lr=0.1", "lr: no such key; did you mean 'optimizer.lr'?", "Keys of the top level"),
        ("epoch=5", "epoch: no such key; did you mean 'train.epochs'?", "Keys of the top level"),
        ("train.lr=0.1", "train.lr: no such key; did you mean 'optimizer.lr'?", "Keys of train"),
        (
            "n_push=3",
            "n_push: no such key; did you mean 'parallelism.n_push' (of parallelism=async_data)?",
            "Keys of the top level",
        ),
        (
            "parallelism.n_push=3",
            "parallelism.n_push: no such key; it is a key of parallelism=async_data",
            "Keys of parallelism=sync_data",
        ),
        (
            "optimizer=sgd optimizer.beta1=0.5",
            "optimizer.beta1: no such key; it is a key of optimizer=adam, optimizer=adamw",
            "Keys of optimizer=sgd",
        ),
        ("model=mpl", "model=mpl: no such option; did you mean 'mlp'?", "Options of model"),
        ("+debug=fst", "debug=fst: no such option; did you mean 'fast'?", "Options of debug"),
        (
            "-m seed=1,2 hydra/launcher=jobib",
            "hydra/launcher=jobib: no such option; did you mean 'joblib'?",
            "Options of hydra/launcher",
        ),
        ("--epochs 5", "--epochs: no such option; write train.epochs=5", ""),
        ("--epochs=5", "--epochs=5: no such option; write train.epochs=5", ""),
        ("explain seed=1 --epochs 5", "--epochs: no such option; write train.epochs=5", ""),
        ("--optimizer.lr 0.1 model=mlp", "--optimizer.lr: no such option; write optimizer.lr=0.1", ""),
        (
            "--batch-size model=mlp",
            "--batch-size: no such option; write train.batch_size=VALUE or adapt.batch_size=VALUE",
            "",
        ),
        (
            "--workers 2",
            "--workers: no such option; write parallelism.workers=2 or cluster.workers=2 or "
            "cluster.stragglers.workers=2",
            "",
        ),
        ("-e 5", "-e: no such option; keys are set by KEY=VALUE; see `runner --help` and `runner --hydra-help`", ""),
        ("eval --foo", "--foo: no such option; see `runner eval --help`", ""),
        ("doctor x --all", "--all: no such option; see `runner doctor --help`", ""),
        (
            "explain --config-dr x",
            "--config-dr: no such option; did you mean '--config-dir'? See `runner explain --help`",
            "",
        ),
        ("predict DIR FILE --tpo=2", "--tpo=2: no such option; did you mean '--top'? See `runner predict --help`", ""),
        ("predict DIR FILE --top -2", "--top -2: expected 1 or more", ""),
        ("sweep best --retry-failed", "--retry-failed: no such option; see `runner sweep best --help`", ""),
        ("sweep resume DIR seed=1 -m", "-m: no such option; see `runner sweep resume --help`", ""),
        ("sweep --bar resume DIR", "--bar: no such option; see `runner sweep --help`", ""),
        ("sweep best DIR DIR", "unrecognized arguments: DIR; see `runner sweep --help`", ""),
        ("model=mlp model.hidden=128", "model.hidden=128: expected a list; write model.hidden=[128]", ""),
        ("init_include=conv*", "init_include=conv*: expected a list; write init_include=[conv*]", ""),
        (
            "ls",
            "unknown verb 'ls': did you mean 'list'? Expected one of simulate, recommend, profile, explain, rerun, "
            "compare, list, eval, adapt, predict, table, sweep, data, ui, sync, doctor, new, or overrides such as "
            "seed=1 or resume=DIR; without a verb, runner trains",
            "",
        ),
        ("seed=99999999999999999999", "seed=99999999999999999999: expected 0 to 9223372036854775807", ""),
        ("seed=9223372036854775808", "seed=9223372036854775808: expected 0 to 9223372036854775807", ""),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_one_to_write(
    fake_training: FakeTraining, folder: Path, capsys: Capture, line: str, answer: str, listed: str
):
    first, *lists = refused(line.split(), capsys).splitlines()
    assert first == f"runner: error: {answer}"
    assert [text.partition(":")[0] for text in lists] == ([listed] if listed else [])
    assert not fake_training.calls
    assert list(folder.iterdir()) == [], "nothing is left behind"


def test_initial_weights_that_do_not_exist_are_refused_before_anything_is_written(folder: Path, capsys: Capture):
    message = refused([*SMALL_RUN, "init_from=/nonexistent"], capsys, code=6)
    assert message == (
        "runner: error: init_from: /nonexistent: no such directory; expected the directory of a run, or a checkpoint\n"
    )
    assert list(folder.iterdir()) == []


def test_a_directory_of_the_user_is_kept_if_a_run_in_it_is_refused(folder: Path, capsys: Capture):
    (folder / "mine").mkdir()
    (folder / "mine" / "notes").touch()
    refused(["seed=-1", "hydra.run.dir=mine/deep/run"], capsys)
    assert [path.name for path in folder.rglob("*")] == ["mine", "notes"]


@pytest.mark.parametrize("option", ["model.hidden=[]", "parallelism=sync_data parallelism.bucket_bytes=0"])
def test_empty_and_zero_values_that_have_a_meaning_are_accepted(fake_training: FakeTraining, option: str):
    assert main(["model=mlp", *option.split()]) == 0


@pytest.mark.parametrize("command", [(), ("explain",)], ids=["train", "explain"])
def test_a_precision_that_the_cpu_lacks_is_refused_before_anything_is_created(
    command: tuple[str, ...], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2"}))
    run_dir = f"hydra.run.dir={folder / 'run'}"
    message = refused([*command, "precision=bfloat16", "tracking=none", run_dir], capsys)
    assert "precision=bfloat16: expected a CPU with one of avx512_bf16, amx_bf16" in message
    assert not list(folder.iterdir())


@pytest.mark.parametrize("arguments", [["hydra.run.dir=file/x"], ["-m", "seed=1,2", "hydra.sweep.dir=file/x"]])
def test_a_directory_that_cannot_be_created_exits_with_4(folder: Path, capsys: Capture, arguments: list[str]):
    (folder / "file").touch()
    message = refused([*SMALL_RUN, *arguments], capsys, code=4)
    assert "cannot write" in message
    assert "hydra.run.dir=DIR" in message
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.mark.parametrize("option", ["--experimental-rerun=run.pickle", "--exp=run.pickle"])
def test_pickles_are_not_loaded(fake_training: FakeTraining, capsys: Capture, option: str):
    assert "executes code of a pickle" in refused([option], capsys, code=8)


@pytest.mark.parametrize("verb", [(), ("explain",)])
def test_a_missing_gpu_is_a_resource_error(verb: tuple[str, ...], folder: Path, capsys: Capture) -> None:
    message = refused([*verb, *SMALL_RUN, "cluster.device=gpu"], capsys, code=4)
    assert "cluster.device=gpu: expected a GPU that can be used, but " in message
    assert "`runner doctor` lists the available GPUs; cluster.device=cpu uses no GPU" in message
    assert list(folder.glob("outputs/**/run.json")) == [], "nothing was begun"


def stored(**cluster: object) -> Config:
    """Return the stored configuration of a run with two workers on GPUs; ``cluster`` replaces some of its values."""
    config = small_config("parallelism=sync_data", "parallelism.workers=2")
    known = {"device": "gpu", "device_taken": "gpu", "gpus": [3, 4], "emulate": True, "workers": 2, **cluster}
    return replace(config, cluster=LocalCluster(**known))


def test_keys_of_the_device_are_split_from_files_and_other_overrides() -> None:
    arguments = ["a.png", "cluster.device=cpu", "./cluster.device=cpu", "cluster.workers=2", "cluster.gpus=[1]", "tf32"]
    requested, others = split_device([*arguments, "cluster.tf32"])
    assert requested == ["cluster.device=cpu", "cluster.gpus=[1]"]
    assert others == ["a.png", "./cluster.device=cpu", "cluster.workers=2", "tf32", "cluster.tf32"]


def test_an_evaluation_ignores_the_devices_of_training() -> None:
    assert with_device(stored(), []).cluster == LocalCluster()
    requested = ["cluster.device=gpu", "cluster.gpus=[1]"]
    assert with_device(stored(), requested).cluster == LocalCluster(device="gpu", gpus=[1])


def test_an_evaluation_on_a_gpu_uses_tf32_by_default_if_training_used_it() -> None:
    rounded = stored(tf32=True)
    assert with_device(rounded, []).cluster.tf32
    assert not with_device(rounded, ["cluster.tf32=false"]).cluster.tf32
    assert with_device(stored(), ["cluster.tf32=true"]).cluster.tf32
    assert with_device(rounded, ["cluster.device=cpu"]).cluster == LocalCluster(device="cpu")


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [
        (["cluster.gpus=[0,1]"], r"gpus=\[0, 1\]: expected the number of one GPU, such as"),
        (["cluster.device=cpu", "cluster.gpus=[0]"], r"gpus=\[0\] with cluster\.device=cpu: the run uses no GPU; use"),
        (["cluster.device=cpu", "cluster.tf32=true"], r"tf32=true with cluster\.device=cpu: the run uses no GPU; use"),
        (["cluster.device=tpu"], r"cluster\.device='tpu': expected one of auto, cpu, gpu"),
    ],
)
def test_overrides_that_do_not_select_exactly_one_device_are_refused(requested: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        with_device(stored(), requested)


SMALL_NET = str(EXAMPLES / "own_model" / "all_conv.py")
CONF = str(EXAMPLES / "own_model" / "conf")


def test_plugin_options_are_split_off_at_any_position() -> None:
    arguments = ["--plugin", "a.py", "explain", "seed=1", "--plugin=b.c", "model=--plugin", "--plugin=x=y.py"]
    assert split_plugins(arguments) == (["a.py", "b.c", "x=y.py"], ["explain", "seed=1", "model=--plugin"])


@pytest.mark.parametrize("arguments", [["--plugin"], ["--plugin="], ["seed=1", "--plugin", "--cfg"]])
def test_a_plugin_without_a_name_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="--plugin: expected a Python file or module, as in"):
        split_plugins(arguments)


def test_training_and_verbs_find_the_model_of_a_plugin(fake_training: FakeTraining, capsys: Capture) -> None:
    chosen = ["--plugin", SMALL_NET, "--config-dir", CONF, "model=all_conv", "model.filters=4"]
    with restored_tables():
        assert main(chosen) == 0
        assert main(["explain", *chosen]) == 0
        assert "shrink2" in capsys.readouterr().out
    assert (fake_training.only.config.model.name, fake_training.only.config.model.filters) == ("all_conv", 4)
    assert fake_training.only.overrides == ["model=all_conv", "model.filters=4"]


def test_yaml_without_its_plugin_reports_the_missing_plugin(folder: Path, capsys: Capture) -> None:
    Path("conf/model").mkdir(parents=True)
    Path("conf/model/absent.yaml").write_text('defaults: ["/schema/model/absent@_here_"]')
    message = refused(["--config-dir", "conf", "model=absent"], capsys)
    assert "There is no such option: correct the name, or give the --plugin that defines it." in message


def test_an_error_in_a_plugin_ends_the_command_and_names_the_line(folder: Path, capsys: Capture) -> None:
    Path("broken.py").write_text("\nimport no_such_library\n")
    message = refused(["--plugin", "broken.py"], capsys)
    assert f"{folder / 'broken.py'}:2: ModuleNotFoundError: No module named 'no_such_library'" in message


def entry_points(*values: str) -> EntryPoints:
    return EntryPoints(EntryPoint(f"p{i}", value, plugins.GROUP) for i, value in enumerate(values))


@pytest.mark.parametrize("value", ["installed_plugin", "installed_plugin:plugin"])
def test_plugins_of_installed_packages_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    (tmp_path / "installed_plugin.py").write_text("from runner.plugin import Plugin\nplugin = Plugin()\n")
    monkeypatch.syspath_prepend(tmp_path)
    requested: list[str] = []
    monkeypatch.setattr(
        plugins.importlib.metadata, "entry_points", lambda group: requested.append(group) or entry_points(value)
    )
    with restored_tables():
        install_plugins([])
        assert list(provenance()) == ["installed_plugin"]
    assert requested == ["runner.plugins"]


def test_an_entry_point_that_is_not_a_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda group: entry_points("mine:other"))
    with pytest.raises(ConfigError, match=r"entry point p0 = mine:other of group runner\.plugins: expected a module"):
        install_plugins([])
