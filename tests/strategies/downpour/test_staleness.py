"""The section ``staleness`` of ``async_data``, and the staleness that a replica's own pushes cause."""

from typing import Any

import pytest

from runner.errors import ConfigError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Sgd
from runner.strategies.async_data import AsyncData
from runner.strategies.downpour.pushed_server import Staleness
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import opened


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "late"}, r"parallelism\.staleness\.policy='late': expected one of bounded, drop, none, scale"),
        ({"policy": "drop"}, r"parallelism\.staleness\.limit=null with policy=drop: expected 0 or more"),
        ({"policy": "scale", "limit": 2}, r"parallelism\.staleness\.limit=2 with policy=scale: only bounded and drop"),
    ],
)
def test_a_contradictory_staleness_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        Staleness(**settings)


OWN = [
    ("sequential", 1, 1, 0),
    ("sequential", 3, 1, 2),
    ("sequential", 3, 2, 1),
    ("sequential", 2, 3, 1),
    ("sequential", 5, 3, 2),
    ("sequential", 4, 2, 1),
    ("overlapped", 1, 1, 1),
    ("overlapped", 3, 1, 3),
    ("overlapped", 2, 3, 1),
    ("overlapped", 4, 2, 2),
    ("direct", 1, 1, 0),
]
"""The staleness by own pushes: loop, n_fetch, n_push, staleness."""


@pytest.mark.parametrize(("loop", "n_fetch", "n_push", "own"), OWN)
def test_a_limit_below_the_staleness_of_own_pushes_is_refused(loop: str, n_fetch: int, n_push: int, own: int) -> None:
    rhythm: dict[str, Any] = {"loop": loop, "n_fetch": n_fetch, "n_push": n_push}
    AsyncData(**rhythm, staleness=Staleness("drop", own))
    AsyncData(**rhythm, staleness=Staleness("bounded", 0))
    if own:
        expected = (
            rf"^parallelism\.staleness\.limit={own - 1} with policy=drop, loop={loop}, n_fetch={n_fetch} and "
            rf"n_push={n_push}: up to {own} of a replica's own pushes .*; expected {own} or more, or fewer"
        )
        with pytest.raises(ConfigError, match=expected):
            AsyncData(**rhythm, staleness=Staleness("drop", own - 1))


@pytest.mark.parametrize(("loop", "n_fetch", "n_push", "own"), OWN)
def test_a_single_replica_has_the_staleness_of_its_own_pushes(
    loop: str, n_fetch: int, n_push: int, own: int, registry: Registry
) -> None:
    strategy = AsyncData(workers=1, loop=loop, n_fetch=n_fetch, n_push=n_push, virtual_time=True)
    with opened(strategy, task_of(NETWORKS["dense"], Sgd(weight_decay=1e-3), batch_size=13), registry) as trainer:
        trainer.session.run("init")
        trainer.train(range(20))
        (found,) = trainer.step_driver.record()["staleness"]
    # With overlapped, a push may still be running when the next fetch ends.
    assert own <= max(map(int, found)) <= own + (loop == "overlapped")
