"""The table of kernels: the choice for a node, and kernels made of functions."""

from collections.abc import Sequence

import numpy as np
import pytest

from runner.engine.graph.tensor import TensorSpec
from runner.kernels.contract import (
    Arrangement,
    Attributes,
    Bound,
    Buffers,
    Choice,
    Kernel,
    KernelError,
    Layout,
    NativeCall,
    Offers,
    Operand,
    Specs,
    as_array,
    plain,
)
from runner.kernels.functions import arrange_plain, function_kernel
from runner.kernels.memory import ALIGNMENT, allocate
from runner.kernels.registry import Registry

BOTH = frozenset({"float32", "float64"})
PAIR = TensorSpec((2,), "float32")


def _no_call(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    raise AssertionError("these kernels are chosen, not run")


def _refuse(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    return None


def _kernel(
    op: str, priority: int = 0, dtypes: frozenset[str] = BOTH, device_type: str = "cpu", *, able: bool = True
) -> Kernel:
    arrange = arrange_plain if able else _refuse
    return Kernel(op, device_type, f"library-{priority}", priority, dtypes, arrange, _no_call)


def _registry(*kernels: Kernel) -> Registry:
    registry = Registry()
    for kernel in kernels:
        registry.add(kernel)
    return registry


def _choose(registry: Registry, op: str, *dtypes: str) -> Choice:
    specs = [TensorSpec((2,), dtype) for dtype in dtypes]
    return registry.choose(op, "cpu", {}, specs, specs[:1], [plain(spec) for spec in specs])


def test_the_highest_priority_is_taken() -> None:
    registry = _registry(_kernel("relu", 0), _kernel("relu", 10), _kernel("relu", 5))
    assert _choose(registry, "relu", "float32").kernel.priority == 10


def test_a_kernel_that_lacks_the_dtype_is_passed_over() -> None:
    registry = _registry(_kernel("relu", 10, frozenset({"float32"})), _kernel("relu", 0))
    assert _choose(registry, "relu", "float64").kernel.priority == 0
    assert _choose(registry, "relu", "float32", "int64").kernel.priority == 10


def test_a_kernel_that_cannot_do_the_node_is_passed_over() -> None:
    registry = _registry(_kernel("relu", 10, able=False), _kernel("relu", 5), _kernel("relu", 0))
    choice = _choose(registry, "relu", "float32")
    assert choice.kernel.priority == 5
    assert choice.arrangement == Arrangement((plain(PAIR),), (plain(PAIR),))


def test_a_kernel_receives_attributes_specs_and_offered_layouts() -> None:
    asked: list[object] = []

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
        asked.extend((dict(attributes), list(inputs), list(outputs), list(offered)))
        return Arrangement((), ())

    registry = _registry(Kernel("relu", "cpu", "library", 0, BOTH, arrange, _no_call))
    registry.choose("relu", "cpu", {"slope": 0.5}, [PAIR], [PAIR, PAIR], [None])
    assert asked == [{"slope": 0.5}, [PAIR], [PAIR, PAIR], [None]]


def test_two_kernels_of_one_priority_are_an_error() -> None:
    with pytest.raises(KernelError, match="op 'relu' on 'cpu': two kernels have priority 5"):
        _registry(_kernel("relu", 5), _kernel("relu", 5))


def test_a_missing_kernel_names_the_devices_that_have_one() -> None:
    registry = _registry(_kernel("relu", device_type="gpu"), _kernel("relu", device_type="tpu"))
    expected = r"no kernel for op 'relu' with dtypes \['float32'\] on device type 'cpu'; .* the op: gpu, tpu"
    with pytest.raises(KernelError, match=expected):
        _choose(registry, "relu", "float32")
    with pytest.raises(KernelError, match="device types that have the op: none"):
        _choose(registry, "tanh", "float32")
    with pytest.raises(KernelError, match=r"no kernel for op 'relu' .* the op: cpu"):
        _choose(_registry(_kernel("relu", able=False)), "relu", "float32")


def test_a_kernel_is_found_by_its_library() -> None:
    registry = _registry(_kernel("relu", 0), _kernel("relu", 10))
    assert registry.find("relu", "cpu", "library-0").priority == 0
    with pytest.raises(KernelError, match=r"op 'relu' on 'cpu' has no kernel of 'mkl'; .*: library-10, library-0"):
        registry.find("relu", "cpu", "mkl")
    with pytest.raises(KernelError, match="op 'tanh' on 'cpu' has no kernel of 'mkl'; it has those of: none"):
        registry.find("tanh", "cpu", "mkl")


def test_gaps_and_strays_are_named() -> None:
    registry = _registry(_kernel("relu"), _kernel("swish"))
    with pytest.raises(KernelError, match=r"missing for ops \['tanh'\], registered for unknown ops \['swish'\]"):
        registry.require(iter(["relu", "tanh"]), "cpu")
    registry.require(iter(["relu", "swish"]), "cpu")


def test_devices_of_an_op() -> None:
    registry = _registry(_kernel("relu"), _kernel("relu", device_type="gpu"), _kernel("tanh"))
    assert registry.device_types("relu") == {"cpu", "gpu"}


def test_machine_code_needs_a_library_that_joins_calls() -> None:
    with pytest.raises(KernelError, match="1 machine-code calls: no library that joins them is loaded"):
        Registry().join([NativeCall(0, (0, 0, 0, 0), None)])


def _operand(spec: TensorSpec, value: object = 0) -> Operand:
    operand = Operand(spec, plain(spec), allocate(spec.nbytes))
    operand.array[...] = value
    return operand


def _bound(function: object, inputs: Sequence[Operand], outputs: Sequence[Operand], **attributes: object) -> Bound:
    kernel = function_kernel("some", function)  # type: ignore[arg-type]
    specs = [[operand.spec for operand in side] for side in (inputs, outputs)]
    arrangement = kernel.arrange(attributes, *specs, [operand.layout for operand in inputs])
    assert arrangement is not None
    return kernel.bind(attributes, arrangement, Buffers(tuple(inputs), tuple(outputs), allocate(0)))


def test_a_function_reads_and_fills_the_memory_it_was_bound_to() -> None:
    x, total, product = _operand(PAIR), _operand(PAIR), _operand(PAIR)
    call = _bound(lambda a, *, factor: (a + factor, a * factor), [x], [total, product], factor=np.float32(3))
    assert callable(call)
    for value in (2.0, 5.0):
        x.array[:] = value
        call()
        assert (total.array.tolist(), product.array.tolist()) == ([value + 3] * 2, [value * 3] * 2)


def test_a_function_may_return_its_input() -> None:
    x, y = _operand(PAIR, 4.0), _operand(PAIR)
    call = _bound(lambda a: a, [x], [y])
    assert callable(call)
    call()
    x.array[:] = 0.0
    assert y.array.tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    ("result", "came"),
    [
        (np.ones(2), r"float64\[2\]"),
        (np.ones(1, np.float32), r"float32\[1\]"),
        (np.ones((1, 2), np.float32), r"float32\[1, 2\]"),
        (1, r"int64\[\]"),
    ],
)
def test_a_function_result_of_another_shape_or_dtype_is_an_error(result: object, came: str) -> None:
    call = _bound(lambda: result, [], [_operand(PAIR)])
    assert callable(call)
    with pytest.raises(TypeError, match=rf"the kernel returned {came}, expected float32\[2\]"):
        call()


def test_memory_begins_at_a_cache_line_and_is_zero() -> None:
    assert allocate(0).nbytes == 0
    for nbytes in (1, 63, 64, 1000):
        memory = allocate(nbytes)
        assert memory.ctypes.data % ALIGNMENT == 0
        assert (memory.nbytes, memory.any()) == (nbytes, False)


@pytest.mark.parametrize("spec", [PAIR, TensorSpec((), "int64"), TensorSpec((0, 3), "float64")])
def test_an_operand_shows_its_bytes_as_an_array(spec: TensorSpec) -> None:
    operand = Operand(spec, plain(spec), allocate(spec.nbytes + 64))
    assert (operand.array.shape, operand.array.dtype) == (spec.shape, spec.dtype)
    operand.array[...] = 1
    assert operand.data[: spec.nbytes].any() == (spec.size > 0)
    assert not operand.data[spec.nbytes :].any()
    assert operand.address == operand.data.ctypes.data


def test_a_tensor_in_another_layout_is_no_array() -> None:
    operand = Operand(PAIR, Layout("aB8b", 32), allocate(32))
    with pytest.raises(ValueError, match="a tensor in layout 'aB8b' was used as a plain array"):
        operand.array  # noqa: B018


def test_fed_values_are_not_promoted() -> None:
    assert as_array(np.ones(2, np.float32), PAIR).dtype == np.float32
    with pytest.raises(ValueError, match=r"came float64\[2\], expected float32\[2\]"):
        as_array([1.0, 2.0], PAIR)
    with pytest.raises(ValueError, match=r"came float32\[2, 1\], expected float32\[2\]"):
        as_array(np.ones((2, 1), np.float32), PAIR)
