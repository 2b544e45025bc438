"""The content of a plugin: plain dataclasses by their names, and ops with kernels."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from runner.engine.graph.op import OPS, ByDecomposition
from runner.errors import ConfigError
from runner.kernels.functions import function_kernel
from runner.models import Mlp
from runner.models.base import Model
from runner.optimizers import Sgd
from runner.plugin import Plugin
from runner.strategies import STRATEGIES
from runner.strategies.base import Strategy


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


def kernel(op: str = "swish", device_type: str = "cpu"):
    return function_kernel(op, abs, device_type=device_type)


def test_valid_plugins_are_accepted() -> None:
    plugin = Plugin(models={"tiny": Tiny}, strategies={"single": STRATEGIES["single"]}, ops=[SWISH], kernels=[kernel()])
    assert plugin.models == {"tiny": Tiny}
    assert plugin.datasets == {}


@pytest.mark.parametrize(
    ("offered", "complaint"),
    [
        ({"models": [Tiny]}, r"Plugin\(models=\.\.\.\): came \[.*\], expected a dict of names and classes"),
        ({"models": {"Tiny": Tiny}}, r"Plugin\(models={'Tiny': \.\.\.}\): came Tiny, expected a name of small letters"),
        ({"models": {"tiny": Tiny()}}, r"expected a class derived from Model"),
        ({"models": {"sgd": Sgd}}, r"expected a class derived from Model"),
        ({"datasets": {"tiny": Tiny}}, r"expected a class derived from DatasetSettings"),
        ({"optimizers": {"tiny": Tiny}}, r"expected a class derived from Optimizer"),
        ({"models": {"tiny": Undecorated}}, r"came class Undecorated, expected a dataclass: put @dataclass before it"),
        ({"models": {"tiny": Abstract}}, r"came class Abstract without forward, expected all its methods"),
        ({"models": {"tiny": Nameless}}, r"came class Nameless without it, expected a first field, name: str = 'tiny'"),
        ({"models": {"small": Tiny}}, r"expected a first field, name: str = 'small'"),
        ({"strategies": {"mine": Alone}}, r"expected a class derived from Strategy"),
        ({"strategies": {"mine": Buildless}}, r"came class Buildless without build, expected all its methods"),
        ({"ops": SWISH}, r"Plugin\(ops=\.\.\.\): came .*, expected a list of OpDef"),
        ({"kernels": [abs]}, r"Plugin\(kernels=\.\.\.\): came .*, expected a list of Kernel"),
        ({"ops": [SWISH]}, r"op 'swish': came without a kernel, expected one for 'cpu' among kernels"),
        ({"ops": [SWISH], "kernels": [kernel(device_type="gpu")]}, r"op 'swish': came without a kernel"),
        (
            {"ops": [replace(SWISH, executed_by="executor")], "kernels": [kernel()]},
            r"came executed_by='executor', expected executed_by='kernel'",
        ),
        (
            {"ops": [replace(SWISH, gradient=ByDecomposition())], "kernels": [kernel()]},
            r"came ByDecomposition without a rule, expected a decompose rule, or a gradient rule",
        ),
    ],
)
def test_invalid_plugins_are_refused(offered: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Plugin(**offered)


def test_an_op_with_a_decomposition_needs_no_kernel() -> None:
    Plugin(ops=[replace(SWISH, decompose=lambda graph, inputs, attributes: inputs)])
