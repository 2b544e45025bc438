"""Constants of oneDNN's C interface, version 3 (dnnl_types.h)."""

TYPES = {"bfloat16": 2, "float32": 3, "int32": 4, "uint8": 6, "bool": 6}
"""dtype -> dnnl_data_type_t. A bool is stored as a byte."""

ANY = 1
"""dnnl_format_tag_any: oneDNN chooses the memory format."""

FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128
"""dnnl_prop_kind_t."""

CONVOLUTION_DIRECT = 0x1
ELTWISE_TANH, ELTWISE_LOGISTIC, ELTWISE_EXP, ELTWISE_HARDSWISH = 0x21, 0x29, 0x2A, 0x34
POOLING_MAX, POOLING_AVG_INCLUDE_PADDING, POOLING_AVG_EXCLUDE_PADDING = 0x1FF, 0x2FF, 0x3FF
LRN_ACROSS_CHANNELS = 0xAFF
BINARY_ADD = 0x1FFF0
SOFTMAX_ACCURATE = 0x30000
"""dnnl_alg_kind_t."""

USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_NORM_RELU = 1, 2, 4, 8
"""dnnl_normalization_flags_t."""

SRC, SRC_1, DST = 1, 2, 17
WEIGHTS, BIAS = 33, 41
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
WORKSPACE, SCRATCHPAD = 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS = 129, 145, 161, 169
DIFF_SCALE, DIFF_SHIFT = 255, 256
MULTIPLE_SRC = 1024
POST_OP_BASE = 32768
"""Numbers of arguments (DNNL_ARG_...); POST_OP_BASE | SRC_1 is the operand of the first post-op."""

_QUERIED = (SRC, DIFF_SRC, WEIGHTS, DIFF_WEIGHTS, DST, DIFF_DST, WORKSPACE, SCRATCHPAD)
QUERIES = {argument: 129 + position for position, argument in enumerate(_QUERIED)}
"""Number of an argument -> dnnl_query_t of the argument's descriptor."""

QUERY_IMPLEMENTATION, QUERY_STRIDES, QUERY_DATA_TYPE = 8, 14, 258
QUERY_INNER_COUNT, QUERY_INNER_BLOCKS, QUERY_INNER_AXES = 263, 264, 265
"""dnnl_query_t."""

SCRATCHPAD_BY_USER = 1
