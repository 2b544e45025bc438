"""Layers: functions that add nodes to a network's graph, record the layer on each node, and return the layer's output.

h = nn.relu(net, nn.conv(net, x, 32, 3, name="conv1", padding="same"), name="relu1")

Images are (N, C, H, W). The name of a layer is unique within its network and prefixes the names of its variables
("conv1/weights"). A layer raises ConfigError if the image is too small for it, and ShapeError or ValueError for wrong
arguments, which are a defect of the model.

Read ``layer`` first: the scope and the parameters of a layer. Then ``features`` and ``activation``, ``windows`` with
``local``, ``normalization``, and ``recurrent``.
"""

from runner.nn.activation import dropout, gelu, relu, scale, sigmoid, softmax, tanh
from runner.nn.features import add, concat, dense, embedding, flatten, multiply
from runner.nn.layer import new_layer
from runner.nn.local import local_contrast_normalization, locally_connected
from runner.nn.normalization import batch_norm, group_norm, layer_norm, local_response_normalization
from runner.nn.recurrent import dropout_of_steps, embedding_of_steps, lstm
from runner.nn.windows import (
    Padding,
    Size,
    avg_pool,
    conv,
    conv_transpose,
    global_avg_pool,
    max_pool,
    zero_padded_shortcut,
)
