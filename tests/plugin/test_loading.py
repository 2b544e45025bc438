"""Loading a plugin by its name on the command line, and error messages with file and line."""

import hashlib
import os
import re
import sys
from pathlib import Path

import pytest

from runner.config.schema import Config
from runner.errors import ConfigError, DataError
from runner.plugin import Plugin, install, plugin_errors, provenance
from runner.plugin.loading import execute, locate
from runner.records.summary import Failure, Summary
from runner.training.build import build
from runner.training.run import run
from tests.small_runs import small_config

GOOD = "from runner.plugin import Plugin\n\nplugin = Plugin()\n"


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_is_executed_as_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, GOOD)
    located = locate("mine.py")
    assert located.reference == path
    assert located.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    (tmp_path / "mine.py").write_text("raise RuntimeError('another text by now')")
    assert execute(located) == Plugin()


def test_a_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    written(tmp_path / "mypackage", GOOD, "parts.py")
    monkeypatch.syspath_prepend(tmp_path)
    located = locate("mypackage.parts")
    assert (located.reference, located.path) == ("mypackage.parts", tmp_path / "mypackage" / "parts.py")
    assert execute(located) is sys.modules["mypackage.parts"].plugin
    for name in ("mypackage", "mypackage.parts"):
        monkeypatch.delitem(sys.modules, name)


def test_a_changed_source_of_a_pinned_plugin_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    sha256 = locate(path).sha256
    assert locate(f"{path}#sha256={sha256}").reference == path
    (tmp_path / "mine.py").write_text(GOOD + "\n")
    with pytest.raises(ConfigError, match=rf"mine\.py was changed: its SHA-256 is [0-9a-f]+, expected {sha256} of"):
        locate(f"{path}#sha256={sha256}")


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("none.py", r"--plugin none\.py: cannot read .*/none\.py: No such file or directory"),
        ("no_such_module", "--plugin no_such_module: Python finds no module of that name; install it"),
        ("no_such_package.module", "No module named 'no_such_package'"),
        ("my-file", r"--plugin my-file: expected a file, FILE\.py, or the name of a module"),
        ("sys", "--plugin sys: Python finds no module of that name"),
    ],
)
def test_missing_plugins_are_refused(reference: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        locate(reference)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.py")
    with pytest.raises(ConfigError, match=r"^--plugin .*/mine\.py: .*/mine\.py is a FIFO: expected a regular file$"):
        locate(str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import numpy\nimport no_such_library\n", r"mine\.py:2: ModuleNotFoundError: No module named"),
        ("x = 1\ny = (\n", r"mine\.py:2: SyntaxError: '\(' was never closed"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"mine\.py:2: ZeroDivisionError: division by zero"),
        (GOOD.replace("Plugin()", "Plugin(models=3)"), r"mine\.py:3: Plugin\(models=\.\.\.\): got 3, expected a dict"),
        ("x = 1\n", r"mine\.py: no plugin found; expected `plugin = runner\.plugin\.Plugin\("),
        ("plugin = 3\n", r"mine\.py: plugin is of class int; expected"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        execute(locate(written(tmp_path, text)))


def test_a_file_that_fails_is_not_kept_as_a_module(tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        execute(locate(written(tmp_path, "1 / 0\n")))
    assert set(sys.modules) == before


def test_a_plugin_that_calls_exit_ends_the_process(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        execute(locate(written(tmp_path, "import sys\nsys.exit(3)\n")))


MODEL = """\
from dataclasses import dataclass
from runner import nn
from runner.models.base import Model
from runner.plugin import Plugin

@dataclass
class MyNet(Model):
    name: str = "mine"

    def forward(self, net, x, classes):
        h = nn.flatten(net, x, name="flat")
        {body}

plugin = Plugin(models={{"mine": MyNet}})
"""


def with_mine(folder: Path, group: str, text: str) -> Config:
    """Install a plugin with this source text, and return a configuration that selects its option ``mine``."""
    install([written(folder, text)])
    (folder / group).mkdir()
    (folder / group / "mine.yaml").write_text("name: mine\n")
    return small_config(f"{group}=mine", config_dir=folder)


@pytest.mark.parametrize(
    ("body", "line", "complaint"),
    [
        ('raise ValueError("oops")', 12, "ValueError: oops; correct it (--debug prints the traceback)"),
        ('return nn.dense(net, x, classes, name="fc")', 12, "expected an input (N, features); flatten images first"),
        ('return nn.dense(net, h, classes, name="flat")', 12, "layer 'flat' is added twice"),
    ],
)
def test_an_error_in_a_model_is_reported_with_its_line(tmp_path: Path, body: str, line: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'mine.py'}:{line}: ")) as refused:
        build(with_mine(tmp_path, "model", MODEL.format(body=body)))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("body", "came"),
    [("return None", "None"), ("return x", "float32[32,1,8,8]"), ("return h", "float32[32,64]"), ("return 3", "3")],
)
def test_a_model_that_does_not_return_logits_is_refused_before_the_start(tmp_path: Path, body: str, came: str) -> None:
    expected = "expected (N, 10), the numbers that the task reads, such as a logit"
    with pytest.raises(ConfigError, match=re.escape(f"model.name=mine: forward returned {came}; {expected}")):
        build(with_mine(tmp_path, "model", MODEL.format(body=body)))


def test_errors_of_a_plugin_get_a_location_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "module_that_divides"
    text = "from runner.plugin import Plugin\ndef divide():\n    return 1 / 0\nplugin = Plugin()\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    install([name])
    module = sys.modules[name]
    monkeypatch.setitem(sys.modules, name, module)
    message = rf"{name}\.py:3: ZeroDivisionError: division by zero"
    with pytest.raises(ConfigError, match=message), plugin_errors(provenance()):
        module.divide()
    with pytest.raises(ZeroDivisionError), plugin_errors(provenance()):
        1 / 0  # noqa: B018
    with pytest.raises(DataError, match="as it is"), plugin_errors(provenance()):
        raise DataError("as it is")


STRATEGY = """\
from dataclasses import dataclass
from runner.plugin import Plugin
from runner.strategies.base import Strategy

@dataclass
class Mine(Strategy):
    name: str = "mine"

    def build(self, task):
        return "a graph"

plugin = Plugin(strategies={"mine": Mine})
"""

DATASET = """\
from dataclasses import dataclass
from runner.data.dataset import Facts
from runner.data.settings import DatasetSettings
from runner.plugin import Plugin

@dataclass
class Mine(DatasetSettings):
    name: str = "mine"

    def facts(self):
        return FACTS

    def load(self):
        raise OSError("lost")

plugin = Plugin(datasets={"mine": Mine})
"""


@pytest.mark.parametrize(
    ("group", "text", "complaint"),
    [
        ("parallelism", STRATEGY, r"parallelism\.name=mine: build returned a graph; expected a Program"),
        ("data", DATASET.replace("FACTS", "None"), r"data\.name=mine: facts returned None; expected Facts"),
        (
            "data",
            DATASET.replace("FACTS", "Facts((1, 4, 4), ('a', 'b'), 10, 5)"),
            r"data: .* Facts: got the fields \(1, 4, 4\), expected a dict; for classes use Facts\.labelled\(",
        ),
    ],
)
def test_a_method_that_returns_another_type_is_refused(group: str, text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(with_mine(tmp_path, group, text))


def test_an_error_of_loading_data_is_reported_with_the_line(tmp_path: Path) -> None:
    facts = 'Facts.labelled((1, 4, 4), ("a", "b"), 64, 16)'
    config = with_mine(tmp_path, "data", DATASET.replace("FACTS", facts))
    with pytest.raises(ConfigError, match=rf"{tmp_path / 'mine.py'}:14: OSError: lost; correct it"):
        run(config, tmp_path / "run", overrides=[])


LOST_LATER = """
import numpy as np
from pathlib import Path
from runner.data.dataset import Dataset, Normalisation, Split

def load(self):
    if Path(RUN_LOG).exists():
        raise OSError("lost")
    split = Split({"x": np.zeros((64, 1, 4, 4), np.uint8), "y": np.arange(64) % 2})
    test = split.take(np.arange(16))
    return Dataset("mine", split, test, Normalisation(1.0, (0.0,), (1.0,)))

Mine.load = load
"""


def test_summary_and_log_have_the_reported_error_of_a_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    text = DATASET.replace("FACTS", 'Facts.labelled((1, 4, 4), ("a", "b"), 64, 16)') + LOST_LATER
    config = with_mine(tmp_path, "data", text.replace("RUN_LOG", repr(str(run_dir / "run.log"))))
    with pytest.raises(ConfigError, match=r"mine\.py:\d+: OSError: lost; correct it") as raised:
        run(config, run_dir, overrides=[])
    error = Summary.read(run_dir / "summary.json").error
    assert error == Failure("ConfigError", str(raised.value), ConfigError.exit_code)
    assert str(raised.value) in (run_dir / "run.log").read_text()
