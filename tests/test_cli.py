"""The command line: its output, its refusals, and its exit codes."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hydra.core.global_hydra import GlobalHydra

import runner
from runner.cli import VERBS, main
from runner.config.groups import GROUPS
from runner.errors import Interrupted, NumericError
from runner.records.summary import versions
from tests.fake_training import FakeTraining
from tests.refusal import Capture, refused

SLOW_TO_IMPORT = ("mlflow", "sklearn", "scipy", "matplotlib", "pandas", "rich")


# --- help and verbs


def test_help_names_every_verb_group_option_and_key(capsys: Capture):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [verb for verb in VERBS if f"\n  {verb} " not in text] == ["worker"], "an internal verb"
    section = text.partition("Groups, ")[2].partition("Keys, ")[0]
    groups = section.replace(f"\n{' ' * 15}", " ").splitlines()  # join wrapped lines
    for group, table in GROUPS.items():
        (line,) = [line for line in groups if line.startswith(f"  {group} ")]
        assert {name.rstrip("*,") for name in line.split()[1:]} >= set(table)
    assert "optimizer    adagrad, adam, adamw, heavy_ball, lbfgs, momentum*, rmsprop, sgd" in text
    assert "digits_equivalence" in text
    assert "  train.epochs             30 " in text
    assert "  checkpoint.keep          3 " in text


OF_THE_MASTER = ("runner.models", "runner.strategies", "runner.engine.compile.compile", "runner.kernels.gpu.cuda")


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--help"], ("hydra", "numpy")),
        (["--cfg", "job"], ()),
        (["worker", "--join=ipc:///nowhere", "--key=missing"], ("hydra", *OF_THE_MASTER)),
    ],
)
def test_commands_import_only_what_they_need(arguments: list[str], more: tuple[str, ...]):
    code = (
        f"import sys; from runner.cli import main; main({arguments}); "
        f"sys.exit(str([name for name in {SLOW_TO_IMPORT + more} if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert [line for line in answer.stderr.splitlines() if not line.startswith("runner: error: key file")] == ["[]"]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_its_own_help(verb: str, capsys: Capture):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: runner {verb}")
    if VERBS[verb]:
        assert f" runner {verb}" in text.partition("example")[2]


def test_a_command_without_memory_exits_with_a_resource_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    def run(_: object) -> int:
        raise MemoryError("Unable to allocate 64.0 MiB")

    monkeypatch.setattr("runner.commands.doctor.main", run)
    assert main(["doctor"]) == 4
    assert capsys.readouterr().err == (
        "runner: error: out of memory: Unable to allocate 64.0 MiB; use a smaller batch or model, or raise the memory "
        "limits of the process\n"
    )


def test_the_version_is_that_of_the_project(capsys: Capture):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"runner {versions()['runner']}\n"


def test_a_reader_that_closes_the_pipe_is_not_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "runner", "--help"]
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (141, "")


@pytest.mark.parametrize("start", [("-m", "runner"), ("-P", "runner/__main__.py")], ids=" ".join)
def test_a_checkout_uses_its_package_and_imports_no_library_from_its_folder(start: tuple[str, str], tmp_path: Path):
    """The Python environment also has an installed copy of the package."""
    package = tmp_path / "runner"
    package.mkdir()
    shutil.copy(Path(runner.__file__).with_name("__main__.py"), package)
    (package / "__init__.py").touch()
    (package / "cli.py").write_text("import random, msgpack\ndef main():\n    print(__file__)\n")
    for library in ("random", "msgpack"):
        (tmp_path / f"{library}.py").write_text("raise ImportError('imported in place of a library')\n")
    answer = subprocess.run([sys.executable, *start], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == (f"{package / 'cli.py'}\n", "")


# --- a run


def test_without_arguments_the_default_is_trained(fake_training: FakeTraining, folder: Path, capsys: Capture):
    existed: list[bool] = []
    fake_training.act = lambda call: existed.append(call.run_dir.exists())
    assert main([]) == 0
    call = fake_training.only
    assert (call.config.model.name, call.config.data.name) == ("lenet", "digits")
    assert (call.overrides, call.sweep, call.resume) == ([], None, False)
    assert call.run_dir.parent.parent == folder / "outputs"
    assert call.config.cluster.threads_per_worker is not None, "a run stores resolved values"
    assert existed == [False], "nothing is written before the run holds its directory"
    out, err = capsys.readouterr()
    assert str(call.run_dir) in out
    assert err == ""


def test_overrides_reach_the_run(fake_training: FakeTraining, folder: Path):
    overrides = ["model=mlp", "model.hidden=[7]", "optimizer.lr=0.5", "hydra.run.dir=here"]
    assert main(overrides) == 0
    call = fake_training.only
    assert (call.config.model.hidden, call.config.optimizer.lr) == ([7], 0.5)
    assert call.run_dir == folder / "here"
    assert call.overrides == overrides[:-1]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NumericError("the loss of step 3 is nan"), 5, "runner: error: the loss of step 3 is nan\n"),
        (Interrupted(15), 143, "runner: error: stopped by SIGTERM\n"),
        (KeyboardInterrupt(), 130, "runner: interrupted\n"),
    ],
    ids=["failed", "stopped by a signal", "stopped before the run handles signals"],
)
def test_a_run_that_ends_early_exits_with_its_code_and_one_message(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
):
    monkeypatch.setattr("runner.commands.train.train", Mock(side_effect=error))
    assert main([]) == code
    assert capsys.readouterr() == ("", message)
    assert main(["--debug"]) == code
    out, err = capsys.readouterr()
    assert (out, err.endswith(message)) == ("", True)
    assert ("Traceback" in err) == isinstance(error, Exception)


def test_a_variable_shows_the_traceback(fake_training: FakeTraining, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(["seed=-1"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runner.commands.train.train", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        main([])


# --- features of Hydra


def test_the_composed_configuration_is_printed(fake_training: FakeTraining, capsys: Capture):
    assert main(["optimizer=adam", "--cfg", "job", "optimizer.lr=0.5"]) == 0
    text = capsys.readouterr().out
    assert "optimizer:\n  name: adam\n  lr: 0.5\n" in text
    assert "hydra:" not in text
    assert not fake_training.calls


def test_hydra_prints_its_sources_and_leaves_no_trace_in_the_process(fake_training: FakeTraining, capsys: Capture):
    root = logging.getLogger()
    before = (sys.argv[:], root.handlers[:], root.level, dict(os.environ))
    assert main(["--info", "defaults"]) == 0
    assert "schema/optimizer/momentum" in capsys.readouterr().out
    assert not fake_training.calls
    main(["hydra.verbose=true"])
    assert (sys.argv, root.handlers, root.level, dict(os.environ)) == before
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("head", ['defaults: ["/schema/model/mlp@_here_"]\n', "name: mlp\n"])
def test_a_users_yaml_file_is_found_and_checked(fake_training: FakeTraining, folder: Path, capsys: Capture, head: str):
    own = folder / "own" / "model"
    own.mkdir(parents=True)
    (own / "wide.yaml").write_text(head + "hidden: [2048]\n")
    (own / "typo.yaml").write_text(head + "hiden: [2048]\n")
    assert main(["--config-dir", "own", "model=wide"]) == 0
    assert fake_training.only.config.model.hidden == [2048]
    capsys.readouterr()
    message = refused(["--config-dir", "own", "model=typo"], capsys)
    assert "model.hiden: no such key; did you mean 'hidden'?" in message


def test_a_stored_configuration_can_be_run_again(fake_training: FakeTraining, folder: Path, capsys: Capture):
    assert main(["--cfg", "job", "seed=5", "model=mlp"]) == 0
    (folder / "stored").mkdir()
    (folder / "stored" / "config.yaml").write_text(capsys.readouterr().out)
    assert main(["-cp", str(folder / "stored"), "-cn", "config", "seed=6"]) == 0
    assert (fake_training.only.config.model.name, fake_training.only.config.seed) == ("mlp", 6)
