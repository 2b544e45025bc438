"""Plain YAML within bounds, and nothing else."""

from pathlib import Path

import pytest

from runner.config import safe_yaml
from runner.errors import ConfigError, SecurityError

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
TOO_DEEP = "a: " + "[" * safe_yaml.MAX_DEPTH + "]" * safe_yaml.MAX_DEPTH


def stored(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_plain_values_are_read_back(tmp_path: Path):
    path = stored(tmp_path, "a: 1\nb: [0.5, null, text]\nc: {d: true}\n")
    assert safe_yaml.load(path) == {"a": 1, "b": [0.5, None, "text"], "c": {"d": True}}


def test_depth_up_to_the_limit_is_read(tmp_path: Path):
    depth = safe_yaml.MAX_DEPTH - 1
    assert list(safe_yaml.load(stored(tmp_path, "a: " + "[" * (depth - 1) + "]" * (depth - 1)))) == ["a"]


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
def test_anything_else_is_refused_with_its_place(tmp_path: Path, text: str | bytes, complaint: str):
    path = stored(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        safe_yaml.load(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        safe_yaml.load(tmp_path / "absent.yaml")


def test_no_link_is_followed(tmp_path: Path):
    link = tmp_path / "link.yaml"
    link.symlink_to(stored(tmp_path, "a: 1\n"))
    with pytest.raises(SecurityError, match="symbolic link"):
        safe_yaml.load(link)
