"""The ops. Importing this package fills the table ``OPS``. In docstrings, "Add y" is short for "Add a node for y".

    from runner.engine.graph import ops
    y = ops.relu(graph, ops.matmul(graph, x, w))

Each file defines a family of ops: functions that add nodes, then shape rules, gradients and costs. Ops that only
compiler passes add have no functions; module docstrings define these ops. Read in this order:

* ``common``: shape conditions and adapters for gradient formulas that all families share.
* ``arithmetic``, ``structural``, ``shape``, ``reduction``, ``indexing``: the basic ops.
* ``activation``, ``linear``, ``convolution``, ``pooling``, ``random``, ``loss``: the layers of networks.
* ``recurrent``: layers over the steps of a sequence, with decompositions.
* ``batch_normalization``, ``local_response_normalization``: layers with decompositions.
* ``elementwise``: chains of element-wise ops, which passes fuse.
* ``executor``: feeds, variables, transfers, and sums over workers.
"""

from runner.engine.graph.ops import elementwise
from runner.engine.graph.ops.activation import log_softmax, relu, relu_gradient, sigmoid, softmax, tanh
from runner.engine.graph.ops.arithmetic import (
    abs,  # noqa: A004 - the op's name
    add,
    div,
    equal,
    erf,
    exp,
    greater,
    greater_equal,
    less,
    log,
    log1p,
    maximum,
    minimum,
    mul,
    neg,
    pow,  # noqa: A004 - the op's name
    scale,
    select,
    sign,
    sqrt,
    square,
    sub,
)
from runner.engine.graph.ops.batch_normalization import batch_norm, batch_norm_gradient, batch_norm_inference
from runner.engine.graph.ops.common import unbroadcast
from runner.engine.graph.ops.convolution import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from runner.engine.graph.ops.executor import all_reduce, assign, placeholder, recv, send, variable
from runner.engine.graph.ops.indexing import add_equal_rows, gather, one_hot, put_rows, scatter_add
from runner.engine.graph.ops.linear import matmul
from runner.engine.graph.ops.local_response_normalization import (
    channel_window_sum,
    local_response_normalization,
    local_response_normalization_gradient,
)
from runner.engine.graph.ops.loss import sigmoid_cross_entropy, softmax_cross_entropy, softmax_cross_entropy_gradient
from runner.engine.graph.ops.pooling import avg_pool, avg_pool_gradient, max_pool, max_pool_gather, max_pool_gradient
from runner.engine.graph.ops.random import dropout_mask, random_normal, random_uniform, uniform_rows
from runner.engine.graph.ops.recurrent import lstm, lstm_gradient
from runner.engine.graph.ops.reduction import argmax, broadcast_to, reduce_max, reduce_mean, reduce_sum
from runner.engine.graph.ops.shape import (
    concat,
    pad,
    reshape,
    slice,  # noqa: A004 - the op's name
    slice_gradient,
    split,
    transpose,
)
from runner.engine.graph.ops.structural import (
    add_n,
    as_dtype,
    cast,
    constant,
    convert,
    fill,
    identity,
    stop_gradient,
    truncate_to_bfloat16,
)
