"""Variables of a replica: names, devices, slots and parts; initial values do not depend on replicas or sharding."""

from dataclasses import replace

import numpy as np
import pytest

from runner.engine.graph import Declaration, Graph, LayerStamp, ShapeError, Tensor, TensorSpec, Variable, Variables
from runner.engine.graph.initializers import Constant, Normal, Uniform, he_normal, lecun_normal
from runner.engine.graph.variables import Part
from runner.kernels.registry import Registry
from tests.engine.running import Array, client, session

MATRIX = TensorSpec((40, 25), "float64")


@pytest.fixture
def variables() -> Variables:
    return Variables(Graph(), seed=1)


def initial_values(graph: Graph, variables: list[Variable], registry: Registry) -> list[Array]:
    """Run the initializers and return the assigned values."""
    tensors = [variable.tensor for variable in variables]
    clients = [client("init", targets=[v.initial for v in variables]), client("get", tensors)]
    with session(graph, registry, *clients) as opened:
        opened.run("init")
        fetched = opened.run("get")
    return [fetched[str(tensor)] for tensor in tensors]


def test_same_name_returns_the_same_variable(variables: Variables) -> None:
    first = variables.get("fc1/weights", MATRIX, Constant())
    assert variables.get("fc1/weights", MATRIX, Normal(5.0)) is first
    assert variables["fc1/weights"] is first
    assert "fc1/weights" in variables
    assert "fc1/bias" not in variables
    assert list(variables) == [first]


def test_variable_requested_with_another_spec_is_refused(variables: Variables) -> None:
    variables.get("w", MATRIX, Constant())
    expected = r"variable 'w' is float64\[40,25\], but is requested as float64\[25\]"
    with pytest.raises(ShapeError, match=expected):
        variables.get("w", TensorSpec((25,), "float64"), Constant())


def test_nodes_of_variables_ignore_the_contexts_around_them() -> None:
    graph = Graph()
    stamp = LayerStamp("fc1", "dense")
    variables = Variables(graph, seed=1, prefix="replica_3", device="/task:3")
    with graph.name_scope("elsewhere"), graph.device("/task:7"):
        made = variables.get("fc1/w", MATRIX, Normal(1.0), layer=stamp)
    assert made.tensor == Tensor("replica_3/fc1/w")
    assert list(graph.nodes) == ["replica_3/fc1/w", "replica_3/init/fc1/w/random_normal", "replica_3/init/fc1/w/assign"]
    assert made.initial == "replica_3/init/fc1/w/assign"
    assert {node.device for node in graph} == {"/task:3"}
    assert {node.layer for node in graph} == {stamp}
    assert graph.nodes[made.initial].colocate_with == ("replica_3/fc1/w",)


def test_trainable_variables_are_in_order_of_creation(variables: Variables) -> None:
    for name, trainable in (("b", True), ("mean", False), ("a", True)):
        variables.get(name, MATRIX, Constant(), trainable=trainable)
    assert [variable.name for variable in variables.trainable] == ["b", "a"]


def test_slot_is_on_the_device_of_its_variable_and_never_trained(variables: Variables, registry: Registry) -> None:
    stamp = LayerStamp("fc1", "dense")
    weights = variables.get("fc1/w", MATRIX, Normal(1.0), decayed=True, layer=stamp)
    slot = variables.slot(weights, "velocity", initial=0.5)
    assert (slot.name, slot.spec, slot.layer) == ("fc1/w/velocity", MATRIX, stamp)
    assert (slot.trainable, slot.decayed) == (False, False)
    assert variables.slot(weights, "velocity") is slot
    assert (initial_values(variables.graph, [slot], registry)[0] == 0.5).all()


def test_variable_and_its_slots_may_be_on_another_device() -> None:
    graph = Graph()
    variables = Variables(graph, seed=1, device="/task:3")
    weights = variables.get("fc1/w", MATRIX, Normal(1.0), device="/task:5")
    slot, other = variables.slot(weights, "velocity"), variables.get("fc2/w", MATRIX, Normal(1.0))
    assert [variables.device_of(each) for each in (weights, slot, other)] == ["/task:5", "/task:5", "/task:3"]
    assert {node.device for node in graph if "fc1" in node.name} == {"/task:5"}


@pytest.mark.parametrize("initializer", [Normal(0.1), Uniform(-1.0, 1.0)])
def test_initial_values_depend_on_seed_and_name_but_not_on_the_replica(
    initializer: Normal | Uniform, registry: Registry
) -> None:
    def drawn(seed: int, name: str, prefix: str) -> Array:
        graph = Graph()
        variables = Variables(graph, seed=seed, prefix=prefix)
        return initial_values(graph, [variables.get(name, MATRIX, initializer)], registry)[0]

    reference = drawn(1, "w", "")
    np.testing.assert_array_equal(drawn(1, "w", "replica_2"), reference, strict=True)
    assert not np.array_equal(drawn(2, "w", ""), reference)
    assert not np.array_equal(drawn(1, "v", ""), reference)


@pytest.mark.parametrize(
    ("initializer", "variance"),
    [(he_normal(40), 2 / 40), (lecun_normal(40), 1 / 40), (Uniform(-3.0, 3.0), 3.0), (Constant(3.0), 0.0)],
)
def test_initial_values_have_the_variance_of_their_rule(
    initializer: Normal | Uniform | Constant, variance: float, variables: Variables, registry: Registry
) -> None:
    (value,) = initial_values(variables.graph, [variables.get("w", MATRIX, initializer)], registry)
    assert value.var() == pytest.approx(variance, rel=0.15, abs=1e-12)


@pytest.mark.parametrize(("axis", "begin", "end"), [(0, 0, 2), (0, 2, 5), (1, 1, 4), (1, 0, 6)])
def test_initial_value_of_a_part_is_a_slice_of_the_whole(axis: int, begin: int, end: int, registry: Registry) -> None:
    graph, spec = Graph(), TensorSpec((5, 6), "float64")
    part = Part(spec, axis, begin, end)
    whole = Declaration("w", spec, Normal(1.0), trainable=True, decayed=True, layer=None)
    stores = [Variables(graph, seed=3, prefix=prefix) for prefix in ("a", "b")]
    kept = stores[0].declare(whole, "")
    shard = stores[1].declare(replace(whole, spec=part.spec, part=part), "")
    slot = stores[1].slot(shard, "velocity")
    values = initial_values(graph, [kept, shard], registry)
    entries = np.s_[begin:end] if axis == 0 else np.s_[:, begin:end]
    np.testing.assert_array_equal(values[1], values[0][entries], strict=True)
    assert (shard.whole, slot.whole, kept.whole) == (spec, spec, spec)
    assert (slot.spec, slot.part) == (shard.spec, part)


def part_of(spec: TensorSpec, axis: int, begin: int, end: int) -> Declaration:
    part = Part(spec, axis, begin, end)
    return Declaration("w", part.spec, Constant(), True, False, None, part)


def test_store_holds_several_parts_of_a_variable_with_their_slots(variables: Variables) -> None:
    low, high = (variables.declare(part_of(MATRIX, 1, *share), "") for share in ((0, 10), (10, 25)))
    assert variables.declare(part_of(MATRIX, 1, 0, 10), "") is low
    slots = [variables.slot(of, "velocity") for of in (low, high)]
    assert variables.parts("w") == [low, high]
    assert variables.parts("w/velocity") == slots
    assert variables.parts("v") == []
    assert list(variables) == [low, high, *slots]
    assert variables.counterpart(replace(high, tensor=low.tensor)) is high
    with pytest.raises(ShapeError, match="variable 'w' is divided into 2 parts; expected a whole variable"):
        variables["w"]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (part_of(TensorSpec((40, 26), "float64"), 1, 0, 9), r"'w' is float64\[40,25\], but is requested as float64\[4"),
        (part_of(MATRIX, 0, 0, 9), "variable 'w' is cut along axis 1, but is requested cut along axis 0"),
        (Declaration("w", MATRIX, Constant(), True, False, None), "is cut along axis 1, but is requested whole"),
    ],
)
def test_parts_of_other_specs_or_axes_are_refused(variables: Variables, asked: Declaration, complaint: str) -> None:
    variables.declare(part_of(MATRIX, 1, 0, 9), "")
    with pytest.raises(ShapeError, match=complaint):
        variables.declare(asked, "")


def test_copy_starts_with_the_initial_value_of_its_source(variables: Variables, registry: Registry) -> None:
    source = variables.get("w", MATRIX, Normal(1.0))
    other = Variables(variables.graph, seed=2, prefix="other")
    copy = other.copy(source, "anchor")
    assert other.copy(source, "anchor") is copy
    assert (copy.name, copy.spec, copy.trainable, copy.source) == ("w/anchor", MATRIX, False, source.tensor)
    expected, found = initial_values(variables.graph, [source, copy], registry)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert np.ptp(found) > 1
