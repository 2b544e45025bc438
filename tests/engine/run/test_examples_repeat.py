"""Hypothesis examples and random kernels are the same in every process."""

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.graph.random_graphs import TrainingSample, training_samples
from tests.engine.run.fake_kernels import random_registry
from tests.engine.running import Bench

ROOT = Path(__file__).parents[2]
HASH_SEEDS = ("1", "2", "3")


def numbers() -> list[int]:
    """The examples that Hypothesis draws for an integer."""
    found: list[int] = []

    @settings(max_examples=200)
    @given(st.integers(0, 2**32))
    def note(number: int) -> None:
        found.append(number)

    note()
    return found


def drawn_plans() -> str:
    """A digest of the plans of some random graphs with random kernels."""
    found: list[str] = []

    @settings(max_examples=20)
    @given(sample=training_samples(controls=False), seed=st.integers(0, 2**32))
    def note(sample: TrainingSample, seed: int) -> None:
        plan = Bench(sample.graph, random_registry(seed), sample.fetches).plan
        found.append(f"{seed} {plan.instructions} {plan.slots} {plan.places}")

    note()
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def test_constants_of_loaded_modules_do_not_change_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = numbers()
    written = ", ".join(str(7919 * k) for k in range(1000, 1100))
    (tmp_path / "loaded_meanwhile.py").write_text(f"NUMBERS = ({written})\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "loaded_meanwhile", importlib.import_module("loaded_meanwhile"))
    assert numbers() == before


def test_plans_are_equal_under_any_hash_seed() -> None:
    code = "import tests.conftest; from tests.engine.run.test_examples_repeat import drawn_plans; print(drawn_plans())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    ]
    digests = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * len(HASH_SEEDS)
    assert len(digests) == 1
