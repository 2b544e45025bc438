from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.tracking import mlflow_client


def test_one_thread_at_a_time_imports_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two at once one may be handed a package that the other has imported half of."""
    barrier = threading.Barrier(2)
    alone: list[bool] = []

    def importing() -> None:
        try:
            barrier.wait(0.5)
        except threading.BrokenBarrierError:
            alone.append(True)

    def reach(_: int) -> None:
        with mlflow_client.store_errors("tracking store"):
            pass

    monkeypatch.setattr(mlflow_client, "_client_class", importing)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(reach, range(2)))
    assert alone == [True, True]
