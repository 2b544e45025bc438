"""A trained network as an ONNX file, for inference outside of runner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.commands.stored_network import StoredNetwork
from runner.data.dataset import Normalisation
from runner.engine.graph import Graph, Node, Tensor, TensorSpec
from runner.errors import ConfigError
from runner.system.files import replace_durably, writing

OPSET = 18
INPUT, OUTPUT, BATCH = "x", "prediction", "N"
_FLOAT = "float32"

_SAME = {
    name: name.title()
    for name in (
        *("add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "erf"),
        *("abs", "relu", "sigmoid", "tanh", "identity"),
    )
} | {"matmul": "MatMul", "add_n": "Sum", "maximum": "Max", "greater": "Greater", "select": "Where"}
"""Op that needs no attributes in ONNX -> its ONNX operator."""

_MOVING = ("transpose", "gather", "lstm", "slice", "reshape")
"""Ops that can read tensors whose first axis is not the axis of examples."""

_GATES = (0, 3, 1, 2)
"""The gates in ONNX's order (input, output, forget, candidate), each as its position in runner's order."""


def write_onnx(path: Path, network: StoredNetwork) -> Path:
    """Write a network as an ONNX file; return the absolute path.

    Input "x": (N, ...) float32 in the units of the training data, which the ONNX graph normalises; or word indices in
    int64. Output "prediction": float32, the logits (N, classes) or the predicted numbers (N, K). N is any number. The
    network computes in float32, regardless of its precision in training. State from earlier batches is replaced by 0.

    Raises ConfigError if the package onnx is missing or an op of the network has no ONNX operator, ResourceError if the
    file cannot be written.
    """
    onnx = _onnx()
    from runner.training.build import workload_of
    from runner.training.inference import PREDICT, ForwardPasses

    config, facts = network.config, network.config.data.facts()
    program = ForwardPasses().build(workload_of(replace(config, precision=_FLOAT), facts))
    client = program.clients[PREDICT]
    (x,) = (slot.tensor for slot in client.inputs if slot.field == "x")
    stored = network.variables()
    weights = {name: np.asarray(stored[name], _FLOAT) for name in program.variables}
    translation = Translation(onnx, program.graph, weights, network.normalisation(), {x: 0})
    model = translation.model(client.fetches["prediction"], x, facts.shape)
    onnx.checker.check_model(model, full_check=True)
    with writing(str(path), "choose another file"):
        replace_durably(path, model.SerializeToString())
    return path.absolute()


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            f"an ONNX file needs the package onnx ({error}); install it with: pip install 'runner-dataflow[onnx]'"
        ) from error
    return onnx


@dataclass
class Translation:
    """The ONNX nodes and constants of one network. batch_axis: tensor -> its axis of examples, if it has one."""

    onnx: Any
    graph: Graph
    weights: Mapping[str, NDArray[Any]]
    normalisation: Normalisation
    batch_axis: dict[Tensor, int]
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)

    def model(self, prediction: Tensor, x: Tensor, shape: tuple[int, ...]) -> Any:
        """Return the ONNX model that computes ``prediction`` from ``x``, whose examples have this shape."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        of_x = kind if self.graph.spec(x).is_float else self.onnx.TensorProto.INT64
        of_prediction = self.graph.spec(prediction).shape[1:]
        self._normalise(x)
        for node in self._needed(prediction, x):
            self._add(node)
        self._emit("Identity", [_name(prediction)], OUTPUT)
        graph = helper.make_graph(
            self.nodes,
            "runner",
            [helper.make_tensor_value_info(INPUT, of_x, [BATCH, *shape])],
            [helper.make_tensor_value_info(OUTPUT, kind, [BATCH, *of_prediction])],
            [self.onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=helper.find_min_ir_version_for([opset]))

    def _normalise(self, x: Tensor) -> None:
        """Add the normalisation of the input, x * factor - offset for each channel; integers are unchanged."""
        if not self.graph.spec(x).is_float:
            self._emit("Identity", [INPUT], _name(x))
            return
        channels, known = (-1, *(1 for _ in self.graph.spec(x).shape[2:])), self.normalisation
        mean, std = (np.asarray(each, np.float64).reshape(channels) for each in (known.mean, known.std))
        factor = self._constant("normalisation/factor", (1.0 / (known.scale * std)).astype(_FLOAT))
        offset = self._constant("normalisation/offset", (mean / std).astype(_FLOAT))
        self._emit("Mul", [INPUT, factor], "normalisation/scaled")
        self._emit("Sub", ["normalisation/scaled", offset], _name(x))

    def _needed(self, prediction: Tensor, x: Tensor) -> list[Node]:
        """Return the nodes that compute ``prediction``, in topological order, without the placeholder of x."""
        wanted = {prediction.node}
        for node in reversed(list(self.graph)):
            if node.name in wanted:
                wanted |= {tensor.node for tensor in self._inputs(node)}
        return [node for node in self.graph if node.name in wanted and node.name != x.node]

    def _add(self, node: Node) -> None:
        if node.op == "variable":
            self._constant(_name(node[0]), self.weights[node.name])
            return
        if node.op == "fill":
            self._constant(_name(node[0]), np.full(node.attributes["shape"], node.attributes["value"], _FLOAT))
            return
        if node.op == "constant":
            stored = np.frombuffer(node.attributes["value"], np.dtype(node.attributes["dtype"]).newbyteorder("<"))
            self._constant(_name(node[0]), stored.reshape(node.attributes["shape"]))
            return
        if (axis := self._axis_of_examples(node)) is not None:
            self.batch_axis.update(dict.fromkeys(node.tensors, axis))
        operator, inputs, attributes = self._translated(node)
        if operator == "LSTM":
            # The second axis of the result is the axis of directions, which has size 1.
            self._emit(operator, inputs, f"{node.name}/directions", **attributes)
            operator, attributes = "Squeeze", {}
            inputs = [f"{node.name}/directions", self._integers(node, "direction", [1])]
        self._emit(operator, inputs, _name(node[0]), **attributes)

    def _translated(self, node: Node) -> tuple[str, list[str], dict[str, Any]]:
        """Return the ONNX operator of a node, its inputs and its attributes."""
        inputs, given = [_name(tensor) for tensor in node.inputs], node.attributes
        if node.op in _SAME and not given.get("transpose_a") and not given.get("transpose_b"):
            return _SAME[node.op], inputs, {}
        if node.op not in _MOVING and any(self.batch_axis.get(tensor, 0) != 0 for tensor in node.inputs):
            raise ConfigError(f"ONNX: node {node.name!r} reads examples along another axis; use a .safetensors file")
        match node.op:
            case "square":
                return "Mul", inputs * 2, {}
            case "conv2d":
                return "Conv", inputs, _convolution(given)
            case "conv2d_input_gradient":
                return "ConvTranspose", inputs, {**_convolution(given), "output_padding": self._output_padding(node)}
            case "max_pool":
                return "MaxPool", inputs, {**_windows(given), "kernel_shape": given["window"]}
            case "avg_pool":
                size = {"kernel_shape": given["window"], "count_include_pad": int(given["count_padding"])}
                return "AveragePool", inputs, {**_windows(given), **size}
            case "local_response_normalization":
                alpha = given["alpha"] * (1 if given["divide_by_size"] else given["size"])
                return "LRN", inputs, {"size": given["size"], "alpha": alpha, "beta": given["beta"], "bias": given["k"]}
            case "batch_norm_inference":
                return "BatchNormalization", inputs, {"epsilon": given["epsilon"]}
            case "concat":
                return "Concat", inputs, {"axis": given["axis"]}
            case "softmax" | "log_softmax":
                return {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[node.op], inputs, {"axis": -1}
            case "reshape":
                return "Reshape", [*inputs, self._integers(node, "shape", self._shape(node))], {}
            case "pad":
                return "Pad", [*inputs, self._integers(node, "widths", (*given["low"], *given["high"]))], {}
            case "transpose":
                return "Transpose", inputs, {"perm": given["perm"]}
            case "gather" if self.batch_axis.get(node.inputs[0]) != 0:
                return "Gather", inputs, {"axis": 0}
            case "one_hot":
                depth = self._integers(node, "depth", [given["depth"]])
                values = self._constant(f"{node.name}/values", np.array([0.0, 1.0], _FLOAT))
                return "OneHot", [*inputs, depth, values], {"axis": -1}
            case "matmul":
                turned = {"transA": int(given["transpose_a"]), "transB": int(given["transpose_b"])}
                return "Gemm", inputs, turned
            case "lstm":
                return "LSTM", self._recurrent(node), {"hidden_size": node.outputs[0].shape[2]}
            case "slice" if node[0] not in self.batch_axis or self._keeps_examples(node):
                return "Slice", [*inputs, *self._places(node)], {}
            case "reduce_mean" | "reduce_sum" | "reduce_max":
                operator = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax"}[node.op[len("reduce_") :]]
                axes = self._integers(node, "axes", given["axes"])
                return operator, [*inputs, axes], {"keepdims": int(given["keepdims"])}
        raise ConfigError(f"ONNX: op {node.op!r} of node {node.name!r} cannot be exported; use a .safetensors file")

    def _axis_of_examples(self, node: Node) -> int | None:
        """Return the axis of examples in a node's outputs, possibly another than in its inputs; None without one."""
        axis = next((self.batch_axis[tensor] for tensor in self._inputs(node) if tensor in self.batch_axis), None)
        if axis is not None and node.op == "transpose":
            return int(node.attributes["perm"].index(axis))
        if axis is not None and node.op == "reshape":
            return self._axis_after(node, axis)
        return axis

    def _axis_after(self, node: Node, axis: int) -> int:
        """Return the axis of examples after a reshape, which may drop preceding axes of size 1."""
        before, after = self._spec(node).shape, node.outputs[0].shape
        if axis and after[0] == before[axis] and before[:axis] == (1,) * axis:
            return 0
        if after[axis : axis + 1] == before[axis : axis + 1]:
            return axis
        raise ConfigError(f"ONNX: node {node.name!r} joins examples with another axis; use a .safetensors file")

    def _inputs(self, node: Node) -> Sequence[Tensor]:
        """Return the tensors that the ONNX operator of a node reads, besides constants."""
        return [self._input_of_steps(node)] if node.op == "lstm" else node.inputs

    def _input_of_steps(self, node: Node) -> Tensor:
        """Return the input (T, N, features) of an LSTM layer, given the layer's ``lstm`` node."""
        added = self._made_by(self._made_by(node.inputs[0], "reshape").inputs[0], "add")
        product = self._made_by(added.inputs[0], "matmul")
        if self.graph.nodes[node.inputs[2].node].op != "select":
            raise ConfigError(f"ONNX: node {node.name!r} continues another node; train with model.chunks=1")
        return self._made_by(product.inputs[0], "reshape").inputs[0]

    def _made_by(self, tensor: Tensor, op: str) -> Node:
        node = self.graph.nodes[tensor.node]
        if node.op != op:
            raise ConfigError(f"ONNX: node {node.name!r} is {node.op}, expected {op}; use a .safetensors file")
        return node

    def _recurrent(self, node: Node) -> list[str]:
        """Return the inputs of ONNX's operator LSTM, which has transposed weights and two biases."""
        added = self._made_by(self._made_by(node.inputs[0], "reshape").inputs[0], "add")
        product = self._made_by(added.inputs[0], "matmul")
        read = [self.weights[tensor.node] for tensor in (product.inputs[1], node.inputs[1], added.inputs[1])]
        own, recurrent, bias = (
            np.concatenate([np.split(each, len(_GATES), axis=-1)[gate] for gate in _GATES], axis=-1) for each in read
        )
        both = np.concatenate([bias, np.zeros_like(bias)])
        values = {"own": own.T[None], "recurrent": recurrent.T[None], "biases": both[None]}
        constants = [self._constant(f"{node.name}/{what}", value) for what, value in values.items()]
        return [_name(self._input_of_steps(node)), *constants]

    def _shape(self, node: Node) -> Sequence[int]:
        """Return the new shape of a reshape; -1 stands for the number of examples, which the reshape keeps."""
        shape: Sequence[int] = node.outputs[0].shape
        axis = self.batch_axis.get(node[0])
        return shape if axis is None else (*shape[:axis], -1, *shape[axis + 1 :])

    def _spec(self, node: Node) -> TensorSpec:
        """Return the shape and dtype of the first input of a node."""
        return self.graph.spec(node.inputs[0])

    def _output_padding(self, node: Node) -> list[int]:
        """Return the numbers of rows and columns that a transposed convolution adds at the bottom and the right."""
        given, (top, bottom, left, right) = node.attributes, node.attributes["padding"]
        axes = zip(
            given["input_shape"][2:],
            self._spec(node).shape[2:],
            self.graph.spec(node.inputs[1]).shape[2:],
            given["strides"],
            given["dilations"],
            (top + bottom, left + right),
            strict=True,
        )
        return [side + zeros - (n - 1) * stride - (size - 1) * step - 1 for side, n, size, stride, step, zeros in axes]

    def _keeps_examples(self, node: Node) -> bool:
        """Return whether a slice keeps all examples in their order."""
        axis = self.batch_axis[node[0]]
        examples = self._spec(node).shape[axis]
        return (node.attributes["size"][axis], node.attributes["steps"][axis]) == (examples, 1)

    def _places(self, node: Node) -> list[str]:
        """Return the constants with the starts, ends, axes and steps of a slice, without the axis of examples."""
        begin, size, steps = (node.attributes[name] for name in ("begin", "size", "steps"))
        axes = [axis for axis in range(len(begin)) if axis != self.batch_axis.get(node[0])]
        ends = [begin[axis] + size[axis] * steps[axis] for axis in axes]
        values = {
            "starts": [begin[axis] for axis in axes],
            # A negative end would count from the end of the axis; the lowest number stands for the start of the axis.
            "ends": [end if end >= 0 else np.iinfo(np.int64).min for end in ends],
            "axes": list(axes),
            "steps": [steps[axis] for axis in axes],
        }
        return [self._integers(node, what, each) for what, each in values.items()]

    def _integers(self, node: Node, what: str, values: Sequence[int]) -> str:
        return self._constant(f"{node.name}/{what}", np.asarray(values, np.int64))

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants[name] = np.ascontiguousarray(value)
        return name

    def _emit(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        made = self.onnx.helper.make_node(operator, list(inputs), [output], name=output, **attributes)
        self.nodes.append(made)


def _name(tensor: Tensor) -> str:
    return tensor.node if tensor.port == 0 else f"{tensor.node}:{tensor.port}"


def _convolution(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**_windows(given), "dilations": given["dilations"], "group": given["groups"]}


def _windows(given: Mapping[str, Any]) -> dict[str, Any]:
    top, bottom, left, right = given["padding"]
    return {"strides": given["strides"], "pads": (top, left, bottom, right)}
