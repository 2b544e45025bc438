"""The nodes and files that the page about the engine names exist."""

import re
from pathlib import Path

from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.run.kernel_table import kernels_for
from runner.training.build import build

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
NODES = re.compile(r"(?<![\w/])((?:replica_\d|reduce|send|recv)/[\w/.]+)")
FILES = re.compile(r"`((?:\.\./|\w+/)+\w+\.py)`")


def test_every_node_on_the_page_is_in_the_graph_or_in_a_plan() -> None:
    experiment = build(fix_machine_values(hydra_app.compose([]).config(), 2))
    program = experiment.program
    plans = ProgramPlans(program, experiment.cluster, kernels_for(experiment.cluster.devices))
    planned = plans.plans(program.clients["train"].signature).values()
    known = {node.name for node in program.graph} | {each.node for plan in planned for each in plan.instructions}
    named = set(NODES.findall(PAGE))
    assert len(named) > 10
    assert named - known == set()


def test_every_file_on_the_page_exists() -> None:
    below = [ROOT / "runner/engine", ROOT / "runner", ROOT / "runner/engine/compile"]
    named = set(FILES.findall(PAGE))
    assert len(named) > 10
    assert {name for name in named if not any((folder / name).exists() for folder in below)} == set()
