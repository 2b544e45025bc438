"""Every number in the schema of the configuration has finite bounds, and each bound is enforced."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from runner.bounds import Bounds, Rate, bounds_of, out_of_bounds
from runner.config.configuration import from_plain, to_plain
from runner.config.groups import GROUPS
from runner.config.schema import Config
from runner.errors import ConfigError
from tests.small_runs import composed_config

OPTIONS: list[tuple[str, type]] = [
    ("", Config),
    *((group, schema) for group, options in GROUPS.items() for schema in options.values()),
]


@dataclass(frozen=True)
class Number:
    """A schema field that holds a number or a list of numbers. path: names of its sections and of the field."""

    group: str
    schema: type
    path: tuple[str, ...]
    hint: Any

    def __str__(self) -> str:
        return ".".join((self.group or "config", self.schema.__name__, *self.path))

    @property
    def bounds(self) -> Bounds:
        found = bounds_of(self.hint)
        assert found is not None
        return found

    def listed(self, number: float | None) -> Any:
        """Return a value of the field: the number, or a list with it if the field holds a list."""
        return [number] if "list[" in str(self.hint) else number

    @property
    def is_whole(self) -> bool:
        return "float" not in str(self.hint)


def numbers_of(group: str, schema: type, section: type, path: tuple[str, ...] = ()) -> Iterator[Number]:
    hints = get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from numbers_of(group, schema, hint, (*path, field.name))
        elif bounds_of(hint) is not None:
            yield Number(group, schema, (*path, field.name), hint)


NUMBERS = [number for group, schema in OPTIONS for number in numbers_of(group, schema, schema)]


def undeclared(hint: Any) -> list[Any]:
    """Return each int and float in an annotation for which the annotation declares no Bounds."""
    if get_origin(hint) is Annotated and any(isinstance(each, Bounds) for each in hint.__metadata__):
        return []
    return [hint] if hint in (int, float) else [found for each in get_args(hint) for found in undeclared(each)]


@pytest.fixture(scope="module")
def default() -> dict[str, Any]:
    return to_plain(composed_config("parallelism=single"))


def test_every_number_of_the_schema_declares_finite_bounds():
    assert len(NUMBERS) > 100
    assert [str(number) for number in NUMBERS if undeclared(number.hint)] == []
    for bounds in (number.bounds for number in NUMBERS):
        assert -math.inf < bounds.low < bounds.high < math.inf


def test_numbers_without_bounds_are_found_in_lists_and_optional_types():
    assert undeclared(list[int] | None) == [int]
    assert undeclared(list[Rate] | None) == []


def complaints(number: Number, value: float) -> list[str]:
    """Return the messages about the number in an option whose other values are defaults."""
    nested: Any = number.listed(value)
    for name in reversed(number.path):
        nested = {name: nested}
    return list(out_of_bounds(number.schema, nested, number.group))


def outside(number: Number) -> list[float]:
    bounds = number.bounds
    if number.is_whole:
        return [bounds.low - 1, bounds.high + 1]
    below = bounds.low if bounds.above else math.nextafter(bounds.low, -math.inf)
    above = bounds.high if bounds.below else math.nextafter(bounds.high, math.inf)
    return [float(below), float(above), math.nan, math.inf, -math.inf]


def test_a_number_outside_the_bounds_is_refused():
    for number in NUMBERS:
        bounds = number.bounds
        key = ".".join(filter(None, (number.group, *number.path)))
        a_list = "a list of numbers, each " if number.listed(0) == [0] else ""
        null = ", or null" if type(None) in get_args(number.hint) else ""
        for value in outside(number):
            expected = f"{key}={number.listed(value)}: expected {a_list}{bounds}{null}"
            assert complaints(number, value) == [expected]
        assert bool(complaints(number, bounds.low)) == bounds.above, number
        assert bool(complaints(number, bounds.high)) == bounds.below, number


@pytest.mark.parametrize(
    ("group", "schema"), OPTIONS, ids=lambda each: each if isinstance(each, str) else each.__name__
)
def test_a_configuration_with_numbers_outside_their_bounds_is_refused(
    default: dict[str, Any], group: str, schema: type
) -> None:
    numbers = [number for number in NUMBERS if (number.group, number.schema) == (group, schema)]
    plain = copy.deepcopy(default)
    if group:
        plain[group] = {"name": schema().name}
    for number in numbers:
        section = plain[group] if group else plain
        for name in number.path[:-1]:
            section = section.setdefault(name, {})
        section[number.path[-1]] = number.listed(outside(number)[0])
    if numbers:
        with pytest.raises(ConfigError) as caught:
            from_plain(plain)
        assert sorted(str(caught.value).splitlines()) == sorted(
            complaint for number in numbers for complaint in complaints(number, outside(number)[0])
        )


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (Bounds(1, 4096), "1 to 4096"),
        (Bounds(0, 1, below=True), "0 to below 1"),
        (Bounds(0, 1e38, above=True), "above 0 and at most 1e+38"),
        (Bounds(0, 1, above=True, below=True), "above 0 and below 1"),
    ],
)
def test_bounds_are_written_as_text(bounds: Bounds, text: str):
    assert str(bounds) == text


def test_one_message_names_every_number_that_is_out_of_bounds():
    with pytest.raises(ConfigError) as caught:
        composed_config("seed=-1", "checkpoint.keep=1", "optimizer.lr=nan", "cluster.threads_per_worker=100000")
    assert str(caught.value).splitlines() == [
        "seed=-1: expected 0 to 9223372036854775807",
        "checkpoint.keep=1: expected 3 to 1000000000",
        "optimizer.lr=nan: expected above 0 and at most 1e+38",
        "cluster.threads_per_worker=100000: expected 1 to 4096, or null",
    ]


def test_numbers_without_bounds_in_a_plugin_must_be_finite():
    @dataclass
    class Schema:
        rate: float = 0.0
        size: int | None = None

    assert list(out_of_bounds(Schema, {"rate": math.inf, "size": None}, "model")) == [
        "model.rate=inf: expected -1.79769e+308 to 1.79769e+308"
    ]
    assert list(out_of_bounds(Schema, {"rate": -0.5, "size": 2**63}, "model")) == [
        "model.size=9223372036854775808: expected -9223372036854775808 to 9223372036854775807, or null"
    ]
