from __future__ import annotations

import threading
from pathlib import Path

from runner.tracking.mlflow_client import file_lock


def test_a_second_holder_waits_for_the_first(tmp_path: Path) -> None:
    events: list[str] = []
    started = threading.Event()

    def second() -> None:
        started.set()
        with file_lock(tmp_path / "folder" / "lock"):
            events.append("second")

    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "folder" / "lock"):
        thread.start()
        assert started.wait(10)
        thread.join(0.05)  # time enough to take a lock that is not held
        events.append("first")
    thread.join(10)
    assert events == ["first", "second"]
