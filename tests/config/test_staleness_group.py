"""``parallelism/staleness``: a group within a group, as it is composed, listed and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.commands.help_text import help_text, options
from runner.config.conf_dir import NestedGroup, conf_dir, nested_groups
from runner.errors import ConfigError
from runner.strategies.downpour.staleness import POLICIES, Staleness
from tests.small_runs import small_config

ASYNC = "parallelism=async_data"
BOUNDED = "parallelism/staleness=bounded"


@pytest.mark.parametrize(
    ("overrides", "staleness"),
    [
        ([ASYNC], Staleness()),
        ([ASYNC, BOUNDED], Staleness("bounded", 4)),
        ([ASYNC, BOUNDED, "parallelism.staleness.limit=9"], Staleness("bounded", 9)),
        (["parallelism=downpour", "parallelism/staleness=scale"], Staleness("scale")),
        ([ASYNC, "parallelism/staleness=drop"], Staleness("drop", 4)),
        ([ASYNC, "parallelism.staleness.policy=drop", "parallelism.staleness.limit=3"], Staleness("drop", 3)),
        ([ASYNC, "parallelism/staleness=drop", "parallelism.staleness.policy=bounded"], Staleness("bounded", 4)),
    ],
)
def test_a_policy_is_chosen_as_a_group_or_by_its_keys(overrides: list[str], staleness: Staleness) -> None:
    assert small_config(*overrides).parallelism.staleness == staleness


def test_there_is_an_option_for_every_policy_and_strategies_of_such_pushes_have_the_group() -> None:
    found = {group.name: group for group in nested_groups(conf_dir())}
    assert found["parallelism/staleness"] == NestedGroup(
        "parallelism/staleness", tuple(sorted(POLICIES)), {"async_data": "none", "downpour": "none"}
    )


def test_help_lists_the_group_apart() -> None:
    assert "staleness" not in options(conf_dir())["parallelism"]
    text = help_text(conf_dir(), {})
    assert "\n  parallelism/staleness  bounded, drop, none*, scale  (of async_data, downpour)\n" in text


@pytest.mark.parametrize("other", ["parallelism=sync_data", "parallelism=hybrid"])
def test_another_strategy_has_no_such_group(other: str) -> None:
    expected = (
        r"^parallelism/staleness: the chosen parallelism has no such group; expected parallelism=async_data, "
        r"parallelism=downpour, or no parallelism/staleness$"
    )
    with pytest.raises(ConfigError, match=expected):
        small_config(other, BOUNDED)


def test_another_strategy_takes_it_in_no_other_way_either() -> None:
    with pytest.raises(ConfigError, match=r"Key 'staleness' not in 'SyncData'[\s\S]*Keys of SyncData: name, workers"):
        small_config("parallelism=sync_data", f"+{BOUNDED}")


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'parallelism/staleness/late'[\s\S]*bounded\s+drop\s+none\s+scale"):
        small_config(ASYNC, "parallelism/staleness=late")


def test_a_folder_without_options_is_no_group(tmp_path: Path) -> None:
    (tmp_path / "group" / "empty").mkdir(parents=True)
    (tmp_path / "group" / "option.yaml").write_text("defaults: [empty: none]\n")
    assert list(nested_groups(tmp_path)) == []
