"""The command line of Hydra, the folder of YAML files, and groups within a group."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from runner.commands.help_text import help_text, options
from runner.config import conf_dir as module
from runner.config.command_line import misplaced_verb, overrides_first, quoted, quoting_hint
from runner.config.conf_dir import NestedGroup, conf_dir, nested_groups
from runner.errors import ConfigError, ResourceError
from runner.strategies.downpour.pushed_server import POLICIES, Staleness
from tests.small_runs import small_config


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package folder in a checkout, in place of the module's folder."""
    folder = tmp_path / "checkout" / "runner"
    folder.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(folder / "config" / "conf_dir.py"))
    return folder


def add_conf(parent: Path) -> Path:
    (parent / "conf").mkdir()
    (parent / "conf" / "config.yaml").touch()
    return parent / "conf"


def test_in_a_checkout_they_are_beside_the_package(package: Path):
    assert add_conf(package.parent) == conf_dir()


def test_installed_they_are_in_the_package(package: Path):
    add_conf(package.parent)
    assert add_conf(package) == conf_dir()


def test_a_broken_installation_is_reported(package: Path):
    with pytest.raises(ResourceError, match=r"no configuration files at .*runner/conf and .*checkout/conf: reinstall"):
        conf_dir()


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


def test_every_policy_has_an_option_and_every_asynchronous_strategy_the_group() -> None:
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


def test_another_strategy_refuses_its_keys() -> None:
    with pytest.raises(ConfigError, match=r"Key 'staleness' not in 'SyncData'[\s\S]*Keys of SyncData: name, workers"):
        small_config("parallelism=sync_data", f"+{BOUNDED}")


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'parallelism/staleness/late'[\s\S]*bounded\s+drop\s+none\s+scale"):
        small_config(ASYNC, "parallelism/staleness=late")


def test_a_folder_without_options_is_no_group(tmp_path: Path) -> None:
    (tmp_path / "group" / "empty").mkdir(parents=True)
    (tmp_path / "group" / "option.yaml").write_text("defaults: [empty: none]\n")
    assert list(nested_groups(tmp_path)) == []


@pytest.mark.parametrize(
    ("typed", "understood"),
    [
        ([], []),
        (["a=1", "-m", "b=1,2"], ["a=1", "b=1,2", "-m"]),
        (["--cfg", "job", "a=1", "--package", "model"], ["a=1", "--cfg", "job", "--package", "model"]),
        (["--pack", "model", "a=1"], ["a=1", "--pack", "model"]),
        (["-cd", "lr=1/conf", "~b", "-cn", "mine", "+c=2"], ["~b", "+c=2", "-cd", "lr=1/conf", "-cn", "mine"]),
        (["--config-dir=conf", "a=1"], ["a=1", "--config-dir=conf"]),
        (["-sc", "install=bash"], ["install=bash", "-sc"]),
    ],
    ids=" ".join,
)
def test_overrides_come_first_and_options_keep_their_values(typed: list[str], understood: list[str]):
    assert overrides_first(typed) == understood


def test_fixed_settings_follow_overrides_and_precede_options():
    assert overrides_first(["a=1", "--info", "-m", "b=2"], last=["c=3"]) == ["a=1", "b=2", "c=3", "--info", "-m"]


def test_a_verb_is_found_behind_options_but_not_as_the_value_of_one():
    assert misplaced_verb(["--config-dir", "conf", "list", "models"], {"list"}) == "list"
    assert misplaced_verb(["--config-name", "list", "a=1"], {"list"}) is None


@pytest.mark.parametrize(
    ("override", "typed"),
    [
        ("init_from=runs/lr=0.1", """'init_from="runs/lr=0.1"'"""),
        ("hydra.run.dir=my run é", """'hydra.run.dir="my run é"'"""),
        ('data.path=a"b', """'data.path="a\\"b"'"""),
        ("data.path=a\\b c", """'data.path="a\\b c"'"""),
        ("seed=[1", ""),
        ("list", ""),
    ],
)
def test_values_that_need_quotes_are_shown_with_them(override: str, typed: str):
    hint = quoting_hint(override)
    assert hint.endswith(typed)
    assert bool(hint) == bool(typed)


@given(st.text("ab \\'\"=,$é"), st.sampled_from("'\""))
def test_a_quoted_value_is_read_as_it_was(text: str, sign: str):
    assert OverridesParser.create().parse_override(f"key={quoted(text, sign)}").value() == text
