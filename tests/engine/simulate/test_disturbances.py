"""Disturbances of simulations: the distributions of draws, and the times of updates under every strategy."""

import functools
import statistics
from typing import Any

import pytest

from runner.engine.simulate.disturbances import Delay, Disturbances, Failures
from runner.engine.simulate.draws import Draws, is_at
from runner.errors import ConfigError
from runner.training.simulation import Simulated, simulate
from tests.training.test_simulation import STRATEGIES, described


@functools.cache
def undisturbed(strategy: str) -> Simulated:
    """Simulate four steps of a strategy without disturbances."""
    return disturbed(strategy)


def disturbed(strategy: str, steps: int = 4, *, seed: int = 1, **disturbances: Any) -> Simulated:
    """Simulate a strategy on the hardware of these tests, with disturbances."""
    config = described(strategy, disturbances=disturbances)
    config.seed = seed
    return simulate(config, steps)


def all_of(found: Simulated) -> tuple[object, ...]:
    """Return the results of a simulation, in a form that can be compared."""
    timeline = found.timeline
    numbers = {name: value for name, value in vars(found).items() if name not in ("timeline", "make_timeline")}
    return numbers, timeline.index.timeline, timeline.links, timeline.updates


@pytest.mark.parametrize(
    "delay",
    [
        Delay("w*", 20.0),
        Delay("w*", 20.0, "exponential"),
        Delay("w*", 20.0, "lognormal", sigma=0.5),
        Delay("w*", 20.0, "lognormal", sigma=0.5, probability=0.25),
    ],
)
def test_delays_have_the_median_and_the_frequency_of_their_distribution(delay: Delay) -> None:
    draws = Draws(Disturbances({"slow": delay}), 3)
    found = [draws.delay_s(f"w{k}", step, 0.0) for k in range(20) for step in range(100)]
    happened = [each for each in found if each]
    assert len(happened) / 2000 == pytest.approx(delay.probability, abs=0.04)
    assert statistics.median(happened) == pytest.approx(0.020, rel=0.06)
    # The upper quartile of a lognormal distribution is exp(0.6745 sigma) medians, of an exponential one log2(4).
    upper = {"constant": 1.0, "exponential": 2.0, "lognormal": 1.4012}[delay.distribution]
    assert statistics.quantiles(happened, n=4)[2] == pytest.approx(0.020 * upper, rel=0.09)
    again = Draws(Disturbances({"slow": delay}), 3)
    assert [again.delay_s("w3", step, 0.0) for step in reversed(range(20))] == found[300:320][::-1]
    assert draws.delay_s("server0", 0, 0.0) == 0.0
    if delay.distribution != "constant":
        assert len(set(happened)) == len(happened)


def test_failures_are_as_frequent_as_stated_and_cost_the_restart() -> None:
    draws = Draws(Disturbances(failures={"host": Failures("w0", mean_hours=1.0, restart_s=100.0)}), 5)
    now, restarts = 0.0, 0
    for step in range(20000):
        late = draws.delay_s("w0", step, now)
        assert late in (0.0, 100.0)
        restarts += late > 0
        now += 60.0 + late
    hours = (now - 100.0 * restarts) / 3600.0
    assert restarts == pytest.approx(hours, rel=0.15)


@pytest.mark.parametrize(
    ("places", "inside", "outside"),
    [("worker*", "worker12", "server0"), ("gpu[8-11]", "gpu10", "gpu1"), ("worker1", "worker1", "worker11")],
)
def test_places_have_ranges_and_stars(places: str, inside: str, outside: str) -> None:
    assert is_at(places, inside)
    assert not is_at(places, outside)


@pytest.mark.parametrize("places", ["*", "w*", "worker12", "*7", "worker1*", "server[2-3]"])
def test_places_of_any_number_of_devices_are_accepted(places: str) -> None:
    described(STRATEGIES[0], disturbances={"delays": {"slow": {"at": places, "median_ms": 1.0}}})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_disturbances_that_never_happen_change_no_bit(strategy: str) -> None:
    never = {"slow": {"at": "worker99", "median_ms": 50.0}}
    rare = {"host": {"at": "*", "mean_hours": 1e30, "restart_s": 1.0}}
    assert all_of(disturbed(strategy, delays=never, failures=rare)) == all_of(undisturbed(strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_delays_lengthen_updates_and_depend_on_nothing_but_the_seed(strategy: str) -> None:
    delays = {"slow": {"at": "worker*", "distribution": "lognormal", "median_ms": 40.0, "sigma": 0.7}}
    first, again, other = (disturbed(strategy, seed=seed, delays=delays) for seed in (1, 1, 2))
    assert all_of(first) == all_of(again)
    assert first.step_s != other.step_s
    assert min(first.step_s, other.step_s) > undisturbed(strategy).step_s + 0.005


def test_a_synchronous_update_waits_for_the_slowest_worker_and_backup_workers_end_the_wait() -> None:
    slow = {"slow": {"at": "worker1", "median_ms": 500.0}}
    servers = "parallelism=sync_data parallelism.workers=2 parallelism.combine=parameter_server parallelism.servers=2"
    alone = disturbed(servers).step_s
    assert disturbed(servers, delays=slow).step_s == pytest.approx(alone + 0.5, abs=1e-3)
    backed = disturbed(f"{servers} parallelism.backup_workers=1", delays=slow)
    assert backed.step_s < alone + 0.01
    assert backed.examples == 24, "the examples of dropped shares do not count"


def test_asynchronous_workers_do_not_wait_for_a_slow_one() -> None:
    slow = {"slow": {"at": "worker1", "median_ms": 500.0}}
    found = disturbed("parallelism=async_data parallelism.workers=2", 40, delays=slow)
    assert found.step_s < 0.05
    assert found.worker_step_s[0] < 0.05


@pytest.mark.parametrize("strategy", STRATEGIES[:-1])
def test_slow_input_limits_the_rate_and_fast_input_changes_nothing(strategy: str) -> None:
    fast = disturbed(strategy, input={"at": "worker*", "examples_per_s": 1e12})
    assert fast.step_s == pytest.approx(undisturbed(strategy).step_s, rel=1e-9)
    slow = disturbed(strategy, 8, input={"at": "worker*", "examples_per_s": 20.0, "ahead": 2})
    # Each worker that reads input reads its share of the 24 examples at 20 per second for each evaluation.
    evaluations = 2 if "lbfgs" in strategy else 1
    readers = 1 if "model" in strategy or "single" in strategy else int(strategy.partition("workers=")[2][0])
    assert slow.step_s == pytest.approx(evaluations * 24 / readers / 20.0, rel=0.3)
    assert slow.worker_step_s[-1] == pytest.approx(24 / readers / 20.0, rel=1e-3)


@pytest.mark.parametrize(
    ("disturbances", "message"),
    [
        (
            {"delays": {"slow": {"at": "worker*", "median_ms": 1.0, "distribution": "normal"}}},
            r"disturbances.delays.slow.distribution='normal': expected one of constant, exponential, lognormal",
        ),
        (
            {"delays": {"slow": {"at": "worker*", "median_ms": 1.0, "sigma": 1.0}}},
            r"disturbances.delays.slow.sigma=1.0: expected 0 unless distribution=lognormal",
        ),
        (
            {"delays": {"slow": {"at": "worker*", "median_ms": 1.0, "distribution": "lognormal"}}},
            r"disturbances.delays.slow.sigma=0.0: expected above 0",
        ),
        (
            {"delays": {"slow": {"at": "gpu1", "median_ms": 1.0}}},
            r"cluster.hardware.disturbances.delays.slow.at='gpu1': .* expected places of 'worker\*' or 'server\*'",
        ),
        (
            {"failures": {"host": {"at": "gpu[0-1]", "mean_hours": 1.0, "restart_s": 1.0}}},
            r"disturbances.failures.host.at='gpu\[0-1\]': no device is there",
        ),
        (
            {"input": {"at": "server*", "examples_per_s": 1.0}},
            r"disturbances.input.at='server\*': no device is there, expected places of 'worker\*'$",
        ),
    ],
)
def test_wrong_disturbances_are_refused(disturbances: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described(STRATEGIES[0], disturbances=disturbances)
