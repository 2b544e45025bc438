"""Emulated slow workers: reproducible random delays."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.cluster.emulation import Emulation, Stragglers
from runner.engine.cluster.links import Link
from runner.engine.graph.device import LONGEST_DELAY_S

LOGNORMAL = Stragglers("lognormal", median_s=0.02, sigma=0.5, seed=3)


def delays(stragglers: Stragglers, worker: int = 0, steps: int = 2000) -> list[float]:
    return [stragglers.delay_s(worker, step) for step in range(steps)]


def test_lognormal_delays_have_the_given_median_and_sigma() -> None:
    logarithms = np.log(delays(LOGNORMAL))
    assert np.exp(np.median(logarithms)) == pytest.approx(0.02, rel=0.05)
    assert np.std(logarithms) == pytest.approx(0.5, rel=0.05)
    centered = (logarithms - np.mean(logarithms)) / np.std(logarithms)
    assert abs(np.mean(centered**3)) < 0.2
    assert np.mean(np.abs(centered) < 1.96) == pytest.approx(0.95, abs=0.02)


def test_delays_are_a_function_of_seed_worker_and_step() -> None:
    again = Stragglers("lognormal", median_s=0.02, sigma=0.5, seed=3)
    forwards = delays(LOGNORMAL, steps=20)
    assert [again.delay_s(0, step) for step in reversed(range(20))] == forwards[::-1]
    assert len(set(forwards)) == 20
    assert delays(LOGNORMAL, worker=1, steps=20) != forwards
    assert delays(Stragglers("lognormal", 0.02, 0.5, seed=4), steps=20) != forwards


def test_delays_of_workers_are_independent() -> None:
    first, second = (np.log(delays(LOGNORMAL, worker)) for worker in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_constant_delay_is_the_median() -> None:
    assert delays(Stragglers("constant", median_s=0.5), steps=3) == [0.5, 0.5, 0.5]


def test_only_listed_workers_are_slow() -> None:
    stragglers = Stragglers("constant", 0.5, workers=(1, 2))
    assert [stragglers.delay_s(worker, 0) for worker in range(4)] == [0.0, 0.5, 0.5, 0.0]
    assert Stragglers().delay_s(0, 0) == 0.0


def test_delay_is_limited() -> None:
    assert max(delays(Stragglers("lognormal", median_s=50.0, sigma=5.0), steps=50)) == LONGEST_DELAY_S


def test_unknown_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="distribution 'normal': expected one of none, constant, lognormal"):
        Stragglers("normal")


def test_parameter_servers_are_not_delayed() -> None:
    emulation = Emulation(stragglers=Stragglers("constant", 0.5))
    assert emulation.delay_s("worker-3", 7) == 0.5
    assert emulation.delay_s("ps-0", 7) == 0.0


def test_text_of_an_emulation() -> None:
    link = Link(0.5e-3, 12.5e6)
    assert str(Emulation(link)) == "100 Mbit/s, 0.5 ms, no stragglers"
    assert str(Emulation(link, Stragglers("constant", 0.02, workers=(0, 2)))) == (
        "100 Mbit/s, 0.5 ms, constant delay of worker 0, 2 with median 20 ms"
    )
    assert str(Emulation(link, LOGNORMAL)).endswith("lognormal delay of all workers with median 20 ms, sigma 0.5")
