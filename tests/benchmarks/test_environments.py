"""Environments of peers: found when they are complete and of the versions asked for, else missing."""

import sys
from pathlib import Path

import pytest

from benchmarks.environments import REQUIREMENTS, MissingEnvironmentError, python_of
from benchmarks.subjects import EXCHANGE_PEERS, PEERS


def made(peers: Path, environment: str, stamp: str) -> None:
    (peers / environment).mkdir()
    (peers / environment / "installed.txt").write_text(stamp)


def test_an_environment_is_found_by_its_packages(tmp_path: Path) -> None:
    made(tmp_path, "jax", "\n".join(REQUIREMENTS["jax"]) + "\n")
    assert python_of("jax", tmp_path) == tmp_path / "jax" / "bin" / "python"


def test_other_versions_are_as_good_as_none(tmp_path: Path) -> None:
    made(tmp_path, "jax", "jax==0.1\n")
    with pytest.raises(MissingEnvironmentError, match="not installed: make bench-peers ARGS=jax"):
        python_of("jax", tmp_path)


def test_an_interrupted_installation_is_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    with pytest.raises(MissingEnvironmentError, match="ARGS=torch"):
        python_of("torch", tmp_path)


def test_our_own_subject_needs_no_environment(tmp_path: Path) -> None:
    assert python_of("", tmp_path) == Path(sys.executable)


def test_every_peer_has_an_environment_of_fixed_versions() -> None:
    assert {peer.environment for peer in (*PEERS, *EXCHANGE_PEERS)} == set(REQUIREMENTS)
    assert all("==" in requirement for each in REQUIREMENTS.values() for requirement in each)
