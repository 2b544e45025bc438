"""A run of several processes is repeated: by its configuration, or by the record of its workers."""

from pathlib import Path

import pytest

from tests.integration.command import QUIET, run_command, succeed, summary_of

SHORT = (
    *QUIET,
    "train.steps=8",
    "train.eval_every=1000",
    "hydra.run.dir=first",
)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        (("model=lenet",), ""),
        (("model=mlp", "parallelism=async_data", "parallelism.workers=3"), "first/endings-1.jsonl"),
        (
            (
                "model=mlp",
                "parallelism.combine=parameter_server",
                "parallelism.backup_workers=1",
            ),
            "first/contributors.jsonl",
        ),
    ],
    ids=["synchronous", "asynchronous", "backup workers"],
)
def test_a_repeated_run_has_the_same_weights(settings: tuple[str, ...], note: str, tmp_path: Path) -> None:
    assert "weights_sha256" in run_command(tmp_path, *SHORT, *settings).output
    again = succeed(tmp_path, "rerun", "first", "--output", "second")
    assert "\nthe same weights as run " in again.output
    assert note in again.errors
    first, second = summary_of(tmp_path / "first"), summary_of(tmp_path / "second")
    assert second.weights_sha256 == first.weights_sha256
    assert second.repeats == first.run_id


def test_a_run_is_found_by_its_id_in_the_store(tmp_path: Path) -> None:
    one = ("model=mlp", "parallelism=single", "cluster.threads_per_worker=1", "train.steps=2", "hydra.run.dir=far/away")
    assert "weights_sha256" in run_command(tmp_path, *one).output
    run_id = summary_of(tmp_path / "far" / "away").run_id
    succeed(tmp_path, "rerun", run_id, "--output", "second")
    compared = succeed(tmp_path, "compare", run_id, "second")
    assert "equal: " in compared.output
