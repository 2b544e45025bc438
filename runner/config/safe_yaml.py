"""Plain data as YAML: reading it from unknown sources, within limits of size and nesting, and writing it.

A stored configuration must not execute code. A file with tags (which can refer to code), aliases or repeated keys is
refused before any object is built.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.errors import ConfigError
from runner.system.files import read_regular

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
_STRING = "tag:yaml.org,2002:str"


class _PlainLoader(yaml.SafeLoader):
    """A safe loader that refuses aliases, duplicate keys and deep nesting."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _refusal("an alias is not allowed here", mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _refusal(f"nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag != _STRING:
                raise _refusal("a key must be a string", key_node.start_mark)
            if key_node.value in seen:
                raise _refusal(f"key {key_node.value!r} appears twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _PlainDumper(yaml.SafeDumper):
    """A safe dumper that also escapes U+0085, which PyYAML otherwise writes as it is and reads as a newline."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_STRING, text, style='"' if "\x85" in text else None)


_PlainDumper.add_representer(str, _text_node)


def dump(plain: Mapping[str, object]) -> str:
    """Return the YAML text from which :func:`load` reads an equal mapping, in the same order."""
    return yaml.dump(plain, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)


def _refusal(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def load(path: Path) -> dict[str, object]:
    """Return the mapping in a YAML file.

    Raises ConfigError if the file is missing, too large, not UTF-8 or not a mapping, or if it uses tags, aliases or
    repeated keys; SecurityError if it is a symbolic link or not a regular file.
    """
    try:
        raw = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes, not a stored configuration")
    try:
        plain = yaml.load(raw.decode(), Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an invalid number or date
        raise ConfigError(f"{path}: not plain YAML: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected a mapping of sections, found {type(plain).__name__}")
    return plain
