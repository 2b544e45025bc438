"""A plugin's content is checked; a plugin is installed completely or not at all, only once, and recorded."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from runner.config.configuration import from_plain, to_plain
from runner.engine.graph.op import OPS, ByDecomposition
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError
from runner.kernels.functions import function_kernel
from runner.kernels.registry import REGISTRY
from runner.models import MODELS, Mlp, Model
from runner.optimizers import Sgd
from runner.plugin import Plugin, changed_plugins, install, pinned_references, plugin_notes, provenance
from runner.plugin.installing import PLUGINS
from runner.plugin.loading import locate
from runner.strategies import STRATEGIES, Strategy
from runner.tasks.base import Loss, Metric
from tests.plugin_tables import EXAMPLES
from tests.small_runs import small_config


@dataclass
class Tiny(Mlp):
    name: str = "tiny"


class Undecorated(Mlp):
    name: str = "tiny"


@dataclass
class Nameless(Mlp):
    units: int = 3


@dataclass
class Abstract(Model):
    name: str = "tiny"


@dataclass
class Alone:
    name: str = "mine"
    workers: int = 1

    def build(self, task: object) -> None: ...


@dataclass
class Buildless(Strategy):
    name: str = "mine"


SWISH = replace(OPS["sigmoid"], name="swish")


def swish_kernel(op: str = "swish", device_type: str = "cpu"):
    return function_kernel(op, abs, device_type=device_type)


def test_valid_plugins_are_accepted() -> None:
    strategies = {"single": STRATEGIES["single"]}
    plugin = Plugin(models={"tiny": Tiny}, strategies=strategies, ops=[SWISH], kernels=[swish_kernel()])
    assert plugin.models == {"tiny": Tiny}
    assert plugin.datasets == {}


@pytest.mark.parametrize(
    ("offered", "complaint"),
    [
        ({"models": [Tiny]}, r"Plugin\(models=\.\.\.\): got \[.*\], expected a dict of names and classes"),
        ({"models": {"Tiny": Tiny}}, r"Plugin\(models={'Tiny': \.\.\.}\): got Tiny, expected a name of lower-case"),
        ({"models": {"tiny": Tiny()}}, r"expected a class derived from Model"),
        ({"models": {"sgd": Sgd}}, r"expected a class derived from Model"),
        ({"datasets": {"tiny": Tiny}}, r"expected a class derived from DatasetSettings"),
        ({"optimizers": {"tiny": Tiny}}, r"expected a class derived from Optimizer"),
        ({"schedules": {"sgd": Sgd}}, r"expected a class derived from Schedule"),
        ({"models": {"tiny": Undecorated}}, r"got class Undecorated, expected a dataclass: put @dataclass before it"),
        ({"models": {"tiny": Abstract}}, r"got class Abstract without forward, expected all its abstract methods"),
        ({"models": {"tiny": Nameless}}, r"got class Nameless, expected a first field, name: str = 'tiny'"),
        ({"models": {"small": Tiny}}, r"expected a first field, name: str = 'small'"),
        ({"strategies": {"mine": Alone}}, r"expected a class derived from Strategy"),
        ({"strategies": {"mine": Buildless}}, r"got class Buildless without build, expected all its abstract methods"),
        ({"tasks": {"tiny": Tiny}}, r"expected a class derived from Task"),
        ({"losses": abs}, r"Plugin\(losses=\.\.\.\): got .*, expected a dict of names and Loss"),
        ({"losses": {"mine": abs}}, r"Plugin\(losses={'mine': \.\.\.}\): got .*, expected Loss with target='labels'"),
        ({"losses": {"mine": Loss("y", abs)}}, r"got Loss\(.*, expected Loss with target='labels' or target='numbers'"),
        ({"losses": {"mine": Loss("labels", "abs")}}, r"got Loss\(.*\), expected a function of_examples"),
        ({"metrics": {"mask": Metric("max")}}, r"got mask, expected a name other than loss, accuracy, mask, labels"),
        ({"metrics": {"mine": Metric("max")}}, r"expected Metric with target='labels' or target='numbers'"),
        ({"metrics": {"mine": Metric("up", target="labels", of_examples=abs)}}, r"got direction='up', expected dir"),
        ({"metrics": {"mine": Metric("max", "", "labels", abs, max)}}, "got of_means, expected of_examples alone"),
        ({"ops": SWISH}, r"Plugin\(ops=\.\.\.\): got .*, expected a list of OpDef"),
        ({"kernels": [abs]}, r"Plugin\(kernels=\.\.\.\): got .*, expected a list of Kernel"),
        ({"ops": [SWISH]}, r"op 'swish': got no kernel, expected one for 'cpu' among kernels"),
        ({"ops": [SWISH], "kernels": [swish_kernel(device_type="gpu")]}, r"op 'swish': got no kernel"),
        (
            {"ops": [replace(SWISH, executed_by="executor")], "kernels": [swish_kernel()]},
            r"got executed_by='executor', expected executed_by='kernel'",
        ),
        (
            {"ops": [replace(SWISH, gradient=ByDecomposition())], "kernels": [swish_kernel()]},
            r"got ByDecomposition without a rule, expected a decompose rule, or a gradient rule",
        ),
    ],
)
def test_invalid_plugins_are_refused(offered: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Plugin(**offered)


def test_an_op_with_a_decomposition_needs_no_kernel() -> None:
    Plugin(ops=[replace(SWISH, decompose=lambda graph, inputs, attributes: inputs)])


MODEL = """
from dataclasses import dataclass
from runner.models import Mlp
from runner.plugin import Plugin

@dataclass
class Tiny(Mlp):
    name: str = "{name}"

plugin = Plugin(models={{"{name}": Tiny}})
"""


def model_file(folder: Path, name: str, file: str = "") -> str:
    path = folder / (file or f"{name}.py")
    path.write_text(MODEL.format(name=name))
    return str(path)


def test_the_model_of_a_plugin_can_be_configured(tmp_path: Path) -> None:
    plain = to_plain(small_config()) | {"model": {"name": "tiny", "hidden": [3]}}
    with pytest.raises(ConfigError, match=r"model\.name is 'tiny': expected one of"):
        from_plain(plain)
    install([model_file(tmp_path, "tiny")])
    assert from_plain(plain).model.hidden == [3]


def test_an_op_is_installed_with_its_kernel() -> None:
    install([str(EXAMPLES / "own_op" / "swish.py")])
    assert OPS["swish"].arity == 1
    assert load_kernels() is REGISTRY, "every op needs a kernel, and every kernel an op"
    assert [kernel.priority for kernel in REGISTRY.of("swish", "cpu")] == [0]


def test_the_same_plugin_is_installed_once(tmp_path: Path) -> None:
    path = model_file(tmp_path, "tiny")
    install([path])
    tiny = MODELS["tiny"]
    install([path, *pinned_references()])
    assert MODELS["tiny"] is tiny
    Path(path).write_text(MODEL.format(name="tiny") + "# changed\n")
    with pytest.raises(ConfigError, match="models: 'tiny' already exists"):
        install([path])


def test_modules_with_equal_sources_are_different_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("pack_a", "pack_b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("from .models import plugin\n")
        model_file(tmp_path / name, name, "models.py")
    install(["pack_a", "pack_b", "pack_a"])
    assert {"pack_a", "pack_b"} <= MODELS.keys()


def test_installed_plugins_are_recorded_and_pinned(tmp_path: Path) -> None:
    assert provenance() == {}
    path = model_file(tmp_path, "tiny")
    install([path])
    sha256 = locate(path).sha256
    assert provenance() == {path: sha256}
    assert pinned_references() == [f"{path}#sha256={sha256}"]


@pytest.mark.parametrize("name", ["lenet", "tiny"])
def test_a_name_that_exists_is_refused(tmp_path: Path, name: str) -> None:
    install([model_file(tmp_path, "tiny")])
    before = dict(MODELS)
    other = Path(model_file(tmp_path, name, "other.py"))
    install([model_file(tmp_path, "tiny", "copy.py")])  # a copy of a plugin adds nothing
    other.write_text(other.read_text() + "# another source\n")
    with pytest.raises(ConfigError, match=rf"other\.py: models: '{name}' already exists in runner"):
        install([str(other)])
    assert before == MODELS


KERNELS = """
from dataclasses import replace
from runner.engine.graph.op import OPS
from runner.kernels.registry import function_kernel
from runner.plugin import Plugin

def compute(x):
    return x

new = replace(OPS["relu"], name="{op}")
plugin = Plugin(ops=[{ops}], kernels=[{kernels}])
"""


@pytest.mark.parametrize(
    ("op", "ops", "kernels", "complaint"),
    [
        ("relu", "new", "function_kernel('relu', compute)", "ops: 'relu' already exists"),
        ("mine", "new, new", "function_kernel('mine', compute)", "ops: 'mine' already exists"),
        ("mine", "", "function_kernel('mine', compute)", "kernels: there is no op 'mine'; add it to ops"),
        ("mine", "", "function_kernel('tanh', compute)", "op 'tanh' has a kernel of priority 0 on 'cpu' already"),
        ("mine", "new", "*[function_kernel('mine', compute)] * 2", "op 'mine' has a kernel of priority 0 on 'cpu'"),
    ],
)
def test_conflicting_entries_are_refused(tmp_path: Path, op: str, ops: str, kernels: str, complaint: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(KERNELS.format(op=op, ops=ops, kernels=kernels))
    before = dict(OPS)
    with pytest.raises(ConfigError, match=complaint):
        install([str(path)])
    assert before == OPS
    assert REGISTRY.of("mine", "cpu") == ()


def test_a_second_kernel_can_be_added_to_a_built_in_op(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    kernel = "replace(function_kernel('tanh', compute, library='mine'), priority=99)"
    path.write_text(KERNELS.format(op="mine", ops="", kernels=kernel))
    install([str(path)])
    assert REGISTRY.of("tanh", "cpu")[0].library == "mine"


A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("recorded", "now", "changed", "notes"),
    [
        (None, {}, [], []),
        (None, {"pack.m": A}, [], ["the run has no record of its plugins; not compared with pack.m"]),
        ({"/x/m.py": A, "pack.m": B}, {"/x/m.py": A, "pack.m": B}, [], []),
        ({"pack.m": A}, {"pack.m": B}, [f"plugin pack.m was changed: its SHA-256 was {A} and is now {B}"], []),
        ({"/x/m.py": A}, {"/y/m.py": A}, [], ["plugin /x/m.py is now /y/m.py"]),
        ({"/x/m.py": A}, {"/y/n.py": A}, [], ["plugin /x/m.py is now /y/n.py"]),
        (
            {"/x/m.py": A},
            {"/y/m.py": B},
            [f"plugin /x/m.py (now /y/m.py) was changed: its SHA-256 was {A} and is now {B}"],
            ["plugin /x/m.py is now /y/m.py"],
        ),
        (
            {"/x/m.py": A, "/y/m.py": B},
            {"/y/m.py": B},
            [],
            ["plugin /x/m.py of the run is not loaded: its content is not available"],
        ),
        ({}, {"pack.m": A}, [], ["plugin pack.m is loaded, but was not loaded in the run"]),
    ],
)
def test_changes_of_plugins_are_reported(
    recorded: dict[str, str] | None, now: dict[str, str], changed: list[str], notes: list[str]
) -> None:
    with patch.dict(PLUGINS, now):
        assert list(changed_plugins(recorded or {})) == changed
        assert list(plugin_notes(recorded)) == notes
