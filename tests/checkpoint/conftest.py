"""A checkpoint for tests that damage it."""

from pathlib import Path

import numpy as np
import pytest

from runner.checkpoint import CheckpointMeta, save

VARIABLES = {"conv/w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(3, np.int64)}
META = CheckpointMeta(config_hash="c0ffee", run_id="0123abcd", epoch=1, examples=64, progress={"best": 0.5})
FILES = ("manifest.json", "variables.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "checkpoints", step=3, variables=VARIABLES, meta=META)
