"""Changes to documents of plain data (maps, lists and scalars), at a given path or at random."""

import copy
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from runner.engine.graph import OPS


def put(document: Any, path: tuple[Any, ...], value: object) -> Any:
    """Return a copy of a document with ``value`` at ``path``."""
    key, *rest = path
    changed = copy.copy(document)
    changed[key] = put(document[key], tuple(rest), value) if rest else value
    return changed


def without(document: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a document without the value at a path."""
    holder = copy.copy(at(document, path[:-1]))
    del holder[path[-1]]
    return put(document, path[:-1], holder)


def at(document: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    return at(document[path[0]], path[1:]) if path else document


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside a document."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield (*path, key)
            yield from places(value, (*path, key))


EXTREMES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    -(10**400),
    1.5,
    math.nan,
    math.inf,
    "",
    "x",
    b"",
    [],
    {},
    [-1],
    [0] * 4,
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 8),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(sorted(OPS)),
    st.sampled_from(["x:0", "input_0:0", "y:0", "float32", "int64", "bool", "/task:1", "fc1", "same"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
integers = st.integers(-3, 8) | st.sampled_from([2**31, 2**63, 10**400])


def like(value: object) -> st.SearchStrategy[Any]:
    """Return a strategy for values of the same type as ``value``, so that they pass the type checks of a parser."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        return st.lists(integers, min_size=max(0, len(value) - 1), max_size=len(value) + 1)
    if isinstance(value, list):
        return st.permutations(value)
    kinds: dict[type, st.SearchStrategy[Any]] = {int: integers, float: st.floats(), bool: st.booleans()}
    return kinds.get(type(value), values)


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """Draw a copy of a document in which one to three values are replaced or removed."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        if len(path) > 1 and draw(st.integers(0, 5)) == 0:
            document = without(document, path)
        else:
            document = put(document, path, draw(values | like(at(document, path))))
    return document
