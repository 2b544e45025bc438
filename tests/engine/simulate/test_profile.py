"""Measured costs: laws of the estimates between measured shapes, the signatures of a plan, and merged profiles."""

import pytest

from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster
from runner.engine.graph.graph import Graph
from runner.engine.simulate.costs import Costs, node_seconds_of
from runner.engine.simulate.hardware import DeviceKind
from runner.engine.simulate.profile import (
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    ROOFLINE,
    Family,
    InstructionSignature,
    Machine,
    MessageCosts,
    Point,
    Profile,
    families_of,
    signature_of,
)
from runner.system.schema import Record
from runner.training.simulation import session_of
from tests.small_runs import small_config

MACHINE = Machine("a CPU", 2, {"numpy": "2"})
MESSAGES = MessageCosts(40.0, 7.0, 80.0, 30.0, 50.0, 90.0, 10.0)


def square(batch: int, *, op: str = "square", form: str = "float32:") -> InstructionSignature:
    """Return the signature of an element-wise op on (batch, 10) numbers, whose work is 80 * batch bytes."""
    return InstructionSignature(op, "llvm", form, ((batch, 10), (batch, 10)), 80.0 * batch)


def measured(*batches: int, threads: int = 1) -> Profile:
    """Return a profile in which a batch of n takes 10 + n microseconds."""
    return Profile(
        MACHINE, MESSAGES, None, None, 20.0, families_of([(square(n), 1e-6 * (10 + n)) for n in batches], threads)
    )


@pytest.mark.parametrize(
    ("wanted", "us", "origin"),
    [
        (square(8), 18.0, MEASURED),
        (square(16), 26.0, INTERPOLATED),
        (square(31), 41.0, INTERPOLATED),
        (square(128), 2 * 74.0, EXTRAPOLATED),
        (square(2), 18.0 / 4, EXTRAPOLATED),
        (square(16, form="bfloat16:"), 26.0, EXTRAPOLATED),
    ],
)
def test_times_are_linear_between_shapes_and_proportional_outside(
    wanted: InstructionSignature, us: float, origin: str
) -> None:
    found = measured(64, 8, 32).estimate(wanted, 1)
    assert found is not None
    assert (1e6 * found.seconds, found.origin) == (pytest.approx(us), origin)


def test_another_op_or_number_of_threads_has_no_estimate() -> None:
    profile = measured(8)
    assert profile.estimate(square(8, op="exp"), 1) is None
    assert profile.estimate(square(8), 2) is None


def test_the_nearest_shape_is_preferred_to_a_shape_of_equal_work() -> None:
    wide = InstructionSignature("square", "llvm", "float32:", ((1, 160), (1, 160)), 80.0 * 16)
    families = families_of([(wide, 1.0), (square(15), 2.0), (square(17), 4.0)], 1)
    found = Profile(MACHINE, None, None, None, None, families).estimate(square(16), 1)
    assert found == (pytest.approx(3.0), INTERPOLATED)


def test_newer_shapes_replace_equal_ones_in_a_merged_profile() -> None:
    merged = measured(8, 16).with_families(families_of([(square(8), 5e-6)], 1))
    assert [(each.shapes[0][0], each.us) for each in merged.families[0].points] == [(8, 5.0), (16, 26.0)]
    assert len(merged.with_families(measured(8, threads=2).families).families) == 2


def test_a_profile_is_read_as_it_was_written() -> None:
    profile, schema = measured(8, 16), Record(Profile)
    assert schema.read(schema.write(profile)) == profile
    broken = schema.write(profile)
    broken["families"][0]["points"][0]["us"] = -1.0
    with pytest.raises(ValueError, match=r"families\[0\].points\[0\].us: -1.0, expected"):
        schema.read(broken)


def test_signatures_have_no_names_and_no_numbers_of_a_batch() -> None:
    config = small_config("parallelism=sync_data", "parallelism.workers=2", "train.batch_size=24", "cluster=ethernet")
    session = session_of(config, 3)
    plans = list(session.plans("train").values())
    signatures = [[signature_of(plan, each) for each in plan.instructions] for plan in plans]
    for each in (signature for of_plan in signatures for signature in of_plan):
        assert "worker" not in each.form
        assert "0.041" not in each.form, "1/24, the factor of a mean over the batch"


def test_origins_of_costs_are_counted() -> None:
    config = small_config("parallelism=single", "train.batch_size=24", "cluster=ethernet")
    ((_, plan),) = session_of(config, 3).plans("train").items()
    known = [each for each in plan.instructions if each.op == "matmul_fused"]
    families: list[Family] = [
        Family(each.op, each.library, each.form, 1, (Point(each.shapes, each.work, 7.0),))
        for each in {signature_of(plan, instruction) for instruction in known[:1]}
    ]
    costs = Costs(DeviceKind(1e9, 1e9), Profile(MACHINE, None, None, None, None, tuple(families)))
    assert costs.seconds(plan, known[0]) == 7e-6
    other = next(each for each in plan.instructions if each.op != "matmul_fused")
    spent = costs.seconds(plan, other)
    assert costs.origins == {MEASURED: 7e-6, ROOFLINE: spent}


def test_gpus_store_the_product_that_an_element_wise_program_reads() -> None:
    graph = Graph()
    a, b, w = (ops.fill(graph, 1.0, shape, "float32") for shape in ((64, 30), (64, 50), (30, 50)))
    program = {"program": "sub 1 0", "outputs": (2,), "product": 0, "dtype": "float32"}
    turned = {"transpose_a": True, "transpose_b": False}
    node = graph.add("matmul_elementwise", (a, b, w), {**turned, **program})

    def seconds(kind: str) -> float:
        described = DeviceKind(1e9, 1e6, type=kind, launch_us=3.0)
        return node_seconds_of(lambda device: described)(graph, node, local_cluster(1).devices[0])

    factors, weights, flops = 4 * 64 * (30 + 50), 4 * 30 * 50, 2 * 64 * 30 * 50 + 30 * 50
    assert seconds("cpu") == pytest.approx(3e-6 + max(1e-9 * flops, 1e-6 * (factors + 2 * weights)))
    assert seconds("gpu") == pytest.approx(2 * 3e-6 + 1e-6 * (factors + weights + 3 * weights))
