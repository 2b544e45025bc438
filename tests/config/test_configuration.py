"""Configuration options match their schemas. Valid stored configurations load unchanged; invalid files are refused."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from runner.commands.help_text import options
from runner.config import safe_yaml
from runner.config.conf_dir import conf_dir
from runner.config.configuration import dump, fix_machine_values, from_plain, load_stored, to_plain
from runner.config.groups import GROUPS
from runner.config.schema import Config
from runner.errors import ConfigError, SecurityError
from tests.small_runs import composed_config as composed

OPTIONS = [(group, name) for group, table in GROUPS.items() for name in table]
CLUSTERS = """
backup_k40 dgx_pair distbelief ethernet k20x8 k20x8_delayed null_k40 rack servers_k40 servers_k40_shared slow_network
slow_worker this_machine titan_x tpu_v2 two_hosts
"""
PRESETS = {
    **{("cluster", name): "local" for name in CLUSTERS.split()},
    ("parallelism", "downpour"): "async_data",
    ("model", "alexnet_footnote"): "alexnet",
    ("model", "distbelief_speech"): "mlp",
    **{("model", f"{name}_benchmark"): name for name in ("alexnet", "googlenet", "overfeat", "vgg_a")},
}
"""(group, preset) -> the option whose default values the preset overrides."""


def test_a_schema_that_replaces_another_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Other(GROUPS["schedule"]["cosine"]):  # type: ignore[misc]
        more: int = 3

    monkeypatch.setitem(GROUPS["schedule"], "cosine", Other)
    assert composed("schedule=cosine", "schedule.more=4").schedule.more == 4
    monkeypatch.undo()
    assert not hasattr(composed("schedule=cosine").schedule, "more")


@pytest.fixture(scope="module")
def default() -> Config:
    return composed()


def test_every_yaml_file_is_an_option_of_a_group_or_a_preset_of_an_option():
    files = options(conf_dir())
    assert files.keys() - {"experiment", "debug"} == GROUPS.keys()
    assert sorted([*OPTIONS, *PRESETS]) == sorted((group, name) for group in GROUPS for name in files[group])


@pytest.mark.parametrize(("group", "name"), PRESETS)
def test_a_preset_is_its_option_with_other_values(group: str, name: str):
    option = PRESETS[group, name]
    chosen = getattr(composed(f"{group}={name}"), group)
    plain = getattr(composed(f"{group}={option}"), group)
    assert type(chosen) is GROUPS[group][option]
    assert chosen.name == option
    assert chosen != plain


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_of_a_group_is_a_mutable_dataclass_with_its_name_as_first_field(group: str, name: str):
    schema = GROUPS[group][name]
    assert dataclasses.is_dataclass(schema)
    assert not schema.__dataclass_params__.frozen, "YAML could not override a frozen schema"
    assert not inspect.isabstract(schema)
    first = dataclasses.fields(schema)[0]
    assert (first.name, first.default) == ("name", name)


NEEDS = {"lbfgs": ["parallelism=single", "schedule=constant"], "sandblaster": ["optimizer=lbfgs", "schedule=constant"]}
"""Option -> the overrides that it requires."""


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_composes_to_its_dataclass_and_survives_storage(group: str, name: str, tmp_path: Path):
    config = composed(f"{group}={name}", *NEEDS.get(name, ()))
    chosen = getattr(config, group)
    assert type(chosen) is GROUPS[group][name]
    assert chosen.name == name
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load_stored(tmp_path / "config.yaml") == config


def test_the_default_is_lenet_on_digits(default: Config):
    assert (default.model.name, default.data.name) == ("lenet", "digits")
    assert (default.parallelism.name, default.tracking.name) == ("sync_data", "mlflow")
    assert default.parallelism.workers == 2
    assert default.train.steps is None


def test_no_yaml_file_contains_a_target_key():
    for file in conf_dir().rglob("*.yaml"):
        assert "_target_" not in file.read_text(), file


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ((), (None, True)),
        (("train.steps=7",), (7, False)),
        (("train.epochs=2",), (None, True)),
        (("experiment=digits_equivalence",), (50, False)),
        (("experiment=digits_equivalence", "train.epochs=2"), (None, True)),
        (("train.steps=7", "train.epochs=null"), (7, False)),
    ],
)
def test_setting_one_limit_of_a_run_clears_the_other(overrides: tuple[str, ...], limits: tuple[int | None, bool]):
    train = composed(*overrides).train
    assert (train.steps, train.epochs is not None) == limits


def test_machine_values_are_filled_in_and_kept(default: Config):
    cluster = dataclasses.replace(default.cluster, threads_per_worker=None)
    default = dataclasses.replace(default, cluster=cluster)
    fixed = fix_machine_values(default, cores=8)
    assert (fixed.cluster.threads_per_worker, fixed.cluster.workers) == (4, 2)
    assert fix_machine_values(fixed, cores=64) == fixed
    assert fix_machine_values(default, cores=1).cluster.threads_per_worker == 1
    assert [fix_machine_values(default, cores=n).cluster.cores_per_worker for n in (8, 1)] == [4.0, 0.5]
    assert default.cluster.threads_per_worker is None


_FLOATS = st.floats(min_value=1e-12, max_value=1e12, allow_nan=False)


@st.composite
def configurations(draw: st.DrawFn, base: dict[str, Any]) -> dict[str, Any]:
    """Draw a configuration, in nested dicts, that differs from ``base`` in values of every type."""
    plain = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    plain["seed"] = draw(st.integers(0, 2**62))
    plain["precision"] = draw(st.sampled_from(["float32", "float64", "bfloat16"]))
    plain["model"] = {"name": "mlp", "hidden": draw(st.lists(st.integers(1, 4096), max_size=4))}
    plain["optimizer"] = {"name": "sgd", "lr": draw(_FLOATS), "clip_norm": draw(st.none() | _FLOATS)}
    name = draw(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=30))
    plain["tracking"] = {"name": "mlflow", "experiment": name.replace("${", "$") + "\x85x\u2028x\u2029x"}
    plain["debug"] = {"check_finite": draw(st.booleans())}
    return plain


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_stored_configuration_is_read_back_equal(default: Config, tmp_path: Path, data: st.DataObject):
    config = from_plain(data.draw(configurations(to_plain(default))))
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    assert load_stored(path) == config


def test_the_stored_text_holds_plain_data_only(default: Config):
    assert yaml.safe_load(dump(default)) == to_plain(default)
    assert "&" not in dump(default)


Edit = tuple[tuple[str, ...], Any]
"""The path of keys to a value, and the new value."""


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        ((("model", "filtres"), 3), "model.filtres: no such key; did you mean 'filters'?"),
        ((("model", "_target_"), "os.system"), "model._target_: no such key"),
        ((("_target_",), "os.system"), "Keys of the top level: seed, precision, task, model"),
        ((("hydra",), {"run": {"dir": "x"}}), "hydra: no such key"),
        ((("data", "augment", "rotate"), 1), "data.augment.rotate: no such key\nKeys of data.augment: crop"),
        ((("optimizer", "lr"), "fast"), "optimizer.lr: Value 'fast' of type 'str' could not be converted to Float"),
        ((("trace",), "maybe"), "trace: Value 'maybe' is not a valid bool"),
        ((("trace_steps",), 0), "trace_steps=0: expected 1 to 100"),
        ((("optimizer", "lr"), -1.0), "optimizer.lr=-1.0: expected above 0 and at most 1e+38"),
        ((("train", "batch_size"), None), "train.batch_size: Incompatible value 'None' for field of type 'int'"),
        ((("train", "batch_size"), 1), "train.batch_size=1 is smaller than parallelism.workers=2"),
        ((("train", "batch_size"), "???"), "train.batch_size: missing value"),
        ((("optimizer", "lr"), 10**400), "optimizer.lr: found a whole number of 1329 bits, expected a 64-bit"),
        ((("train", "steps"), -(2**1000)), f"train.steps={-(2**1000)}: expected 1 to 1000000000, or null"),
        ((("model", "filters"), [2**64]), f"model.filters=[{2**64}]: expected a list of numbers, each 1 to"),
        ((("model", "filters"), [{"a": 1}]), "model.filters=[{'a': 1}]: expected a list of numbers, each 1 to"),
        ((("model", "name"), "perceptron"), "model.name is 'perceptron': expected one of mlp, lenet"),
        ((("model", "name"), ["lenet"]), "model.name is ['lenet']: expected one of mlp, lenet"),
        ((("model",), {"units": 3}), "model.name is missing: expected one of mlp, lenet"),
        (
            (("model",), "lenet"),
            f"model: expected one of {', '.join(GROUPS['model'])} and the keys of this option, found 'lenet'",
        ),
        ((("train",), 3), "train: expected a section of keys, found 3"),
        ((("data", "augment"), None), "data.augment: expected a section of keys, found None"),
        ((("tracking", "experiment"), "${oc.env:HOME}"), "tracking.experiment: '${oc.env:HOME}' holds"),
        ((("model", "filters"), [1, "x${seed}"]), "model.filters: 'x${seed}' holds an interpolation"),
    ],
)
def test_a_configuration_outside_the_schema_is_refused(default: Config, tmp_path: Path, edit: Edit, complaint: str):
    plain = to_plain(default)
    (*parents, last), value = edit
    section = plain
    for name in parents:
        section = section[name]
    section[last] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(ConfigError) as caught:
        load_stored(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


def test_a_stored_configuration_without_a_group_is_refused(default: Config, tmp_path: Path):
    plain = to_plain(default)
    del plain["optimizer"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain))
    with pytest.raises(ConfigError, match="optimizer: expected one of sgd, momentum"):
        load_stored(tmp_path / "config.yaml")


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
TOO_DEEP = "a: " + "[" * safe_yaml.MAX_DEPTH + "]" * safe_yaml.MAX_DEPTH


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_plain_values_are_loaded_up_to_the_depth_limit(tmp_path: Path):
    lists = safe_yaml.MAX_DEPTH - 2
    assert list(safe_yaml.load(written(tmp_path, "a: " + "[" * lists + "]" * lists))) == ["a"]
    path = written(tmp_path, "a: 1\nb: [0.5, null, text]\nc: {d: true}\n")
    assert safe_yaml.load(path) == {"a": 1, "b": [0.5, None, "text"], "c": {"d": True}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BOMB, "an alias is not allowed here"),
        (TOO_DEEP, "nested deeper than 16 levels"),
        ("[" * 100_000, "nested deeper than 16 levels"),
        ("a: 1\na: 2\n", "key 'a' appears twice"),
        ("? [a]\n: 1\n", "a key must be a string"),
        ("1: a\n", "a key must be a string"),
        ("<<: {a: 1}\n", "a key must be a string"),
        ("a: !!python/object/apply:os.system [id]\n", "could not determine a constructor"),
        ("a: [1\n", "not plain YAML"),
        ("- 1\n", "expected a mapping of sections, found list"),
        ("", "expected a mapping of sections, found NoneType"),
        (b"\xff\xfe\x00", "not plain YAML"),
        ("a: " + "9" * 5000, "not plain YAML"),
        ("a: 2020-13-45", "not plain YAML"),
        ("a: b\n" + "#" * safe_yaml.MAX_BYTES, "larger than 262144 bytes"),
    ],
)
def test_invalid_yaml_is_refused_with_the_file_and_the_reason(tmp_path: Path, text: str | bytes, complaint: str):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        safe_yaml.load(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named_and_no_link_is_followed(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        safe_yaml.load(tmp_path / "absent.yaml")
    link = tmp_path / "link.yaml"
    link.symlink_to(written(tmp_path, "a: 1\n"))
    with pytest.raises(SecurityError, match="symbolic link"):
        safe_yaml.load(link)
