"""The kernel registry: the choice of a kernel for a node, and kernels made from Python functions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import TensorSpec
from runner.kernels.contract import Buffers, Choice, Kernel, KernelError, Layout, NativeCall, Operand, plain
from runner.kernels.functions import arrange_plain, function_kernel
from runner.kernels.memory import allocate
from runner.kernels.registry import Registry
from tests.kernels.harness import arranged

BOTH, FLOAT32 = frozenset({"float32", "float64"}), frozenset({"float32"})
PAIR = TensorSpec((2,), "float32")


def _no_call(*arguments: object) -> None:
    raise AssertionError("these kernels are chosen, not run")


def _refuse(*arguments: object) -> None:
    """Return None, as the arrange function of a kernel that does not support a node."""


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


@pytest.mark.parametrize(
    ("kernels", "dtypes", "priority"),
    [
        pytest.param([_kernel("relu", 0), _kernel("relu", 10), _kernel("relu", 5)], ["float32"], 10, id="highest"),
        pytest.param([_kernel("relu", 10, FLOAT32), _kernel("relu", 0)], ["float64"], 0, id="without the dtype"),
        pytest.param([_kernel("relu", 10, FLOAT32), _kernel("relu", 0)], ["float32", "int64"], 10, id="integers"),
        pytest.param([_kernel("relu", 10, able=False), _kernel("relu", 5)], ["float32"], 5, id="unable"),
    ],
)
def test_the_first_kernel_by_priority_that_takes_the_node_is_chosen(
    kernels: list[Kernel], dtypes: list[str], priority: int
) -> None:
    choice = _choose(_registry(*kernels), "relu", *dtypes)
    assert choice.kernel.priority == priority
    assert choice.arrangement.outputs == (plain(TensorSpec((2,), dtypes[0])),)


def test_a_kernel_receives_attributes_specs_and_offered_layouts() -> None:
    asked: list[object] = []

    def arrange(*arguments: Any) -> object:
        asked.extend(arguments)
        return arrange_plain(*arguments)

    registry = _registry(Kernel("relu", "cpu", "library", 0, BOTH, arrange, _no_call))
    registry.choose("relu", "cpu", {"slope": 0.5}, [PAIR], [PAIR, PAIR], [None])
    assert asked == [{"slope": 0.5}, [PAIR], [PAIR, PAIR], [None]]


RELU, TANH = _kernel("relu"), _kernel("tanh")
ON_OTHERS = (_kernel("relu", device_type="gpu"), _kernel("relu", device_type="tpu"))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda: _registry(RELU, RELU), "op 'relu' on 'cpu': two kernels have priority 0"),
        (
            lambda: _choose(_registry(*ON_OTHERS), "relu", "float32"),
            r"no kernel for op 'relu' with dtypes \['float32'\] on device type 'cpu'; .* the op: gpu, tpu",
        ),
        (lambda: _choose(_registry(*ON_OTHERS), "tanh", "float32"), "device types that have the op: none"),
        (lambda: _choose(_registry(_kernel("relu", able=False)), "relu", "float32"), "op 'relu' .* the op: cpu"),
        (
            lambda: _registry(RELU, _kernel("relu", 10)).find("relu", "cpu", "mkl"),
            r"op 'relu' on 'cpu' has no kernel of 'mkl'; .*: library-10, library-0",
        ),
        (
            lambda: _registry(RELU).find("tanh", "cpu", "mkl"),
            "op 'tanh' on 'cpu' has no kernel of 'mkl'; libraries with a kernel: none",
        ),
        (
            lambda: _registry(RELU, _kernel("swish")).require(iter(["relu", "tanh"]), "cpu"),
            r"missing for ops \['tanh'\], registered for unknown ops \['swish'\]",
        ),
        (
            lambda: Registry().join([NativeCall(0, (0, 0, 0, 0), None)]),
            "1 machine-code calls: no library that joins them is loaded",
        ),
    ],
)
def test_errors_name_missing_and_ambiguous_kernels(asked: Callable[[], object], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        asked()


def test_kernels_are_found_by_library_and_by_op() -> None:
    registry = _registry(RELU, _kernel("relu", 10), TANH, _kernel("relu", device_type="gpu"))
    assert registry.find("relu", "cpu", "library-0").priority == 0
    assert registry.device_types("relu") == {"cpu", "gpu"}
    registry.require(iter(["relu", "tanh"]), "cpu")


def _operand(spec: TensorSpec, value: object = 0) -> Operand:
    operand = Operand(spec, plain(spec), allocate(spec.nbytes))
    operand.array[...] = value
    return operand


def _bound(function: object, inputs: Sequence[Operand], outputs: Sequence[Operand], **attributes: object) -> Any:
    kernel = function_kernel("some", function)  # type: ignore[arg-type]
    specs = [[operand.spec for operand in side] for side in (inputs, outputs)]
    arrangement = arranged(kernel, attributes, *specs)
    return kernel.bind(attributes, arrangement, Buffers(tuple(inputs), tuple(outputs), allocate(0)))


def test_a_function_reads_and_fills_the_memory_it_was_bound_to() -> None:
    x, total, product = _operand(PAIR), _operand(PAIR), _operand(PAIR)
    call = _bound(lambda a, *, factor: (a + factor, a * factor), [x], [total, product], factor=np.float32(3))
    for value in (2.0, 5.0):
        x.array[:] = value
        call()
        assert (total.array.tolist(), product.array.tolist()) == ([value + 3] * 2, [value * 3] * 2)


def test_a_function_may_return_its_input() -> None:
    x, y = _operand(PAIR, 4.0), _operand(PAIR)
    call = _bound(lambda a: a, [x], [y])
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
    with pytest.raises(TypeError, match=rf"the kernel returned {came}, expected float32\[2\]"):
        call()


@pytest.mark.parametrize("spec", [PAIR, TensorSpec((), "int64"), TensorSpec((0, 3), "float64")])
def test_an_operand_shows_its_bytes_as_an_array(spec: TensorSpec) -> None:
    operand = Operand(spec, plain(spec), allocate(spec.nbytes + 64))
    assert (operand.array.shape, operand.array.dtype) == (spec.shape, spec.dtype)
    operand.array[...] = 1
    assert operand.data[: spec.nbytes].any() == (spec.size > 0)
    assert not operand.data[spec.nbytes :].any()
    assert operand.address == operand.data.ctypes.data


def test_a_tensor_in_another_layout_cannot_be_used_as_an_array() -> None:
    operand = Operand(PAIR, Layout("aB8b", 32), allocate(32))
    with pytest.raises(ValueError, match="a tensor in layout 'aB8b' was used as a plain array"):
        operand.array  # noqa: B018
