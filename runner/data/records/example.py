"""``tf.train.Example`` messages, with the fields of TensorFlow's example.proto and feature.proto.

An Example is a map from names to features; a feature is a list of byte strings, of float32 or of int64 numbers.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = list[bytes] | NDArray[Any]
"""A feature: a list of byte strings, or an array of float32 or int64."""

_FLOAT = np.dtype("<f4")
_PROTO = """
name: "example.proto" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".Int64List" oneof_index: 0 }
  oneof_decl { name: "kind" }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".Features" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry"
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".Feature" }
    options { map_entry: true }
  }
}
"""


def decode(data: bytes, wanted: Collection[str] | None = None) -> dict[str, Value]:
    """Return the features of a serialized Example by name. wanted: the names to return; None for all.

    If a name occurs twice, the last entry counts. Raises ValueError for invalid data.
    """
    from google.protobuf.message import DecodeError

    try:
        features = _example().FromString(data).features.feature
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return {name: _value(features[name]) for name in (features if wanted is None else wanted) if name in features}


def _value(feature: Any) -> Value:
    """Return the value of a Feature; an empty Feature is an empty list of byte strings."""
    match feature.WhichOneof("kind"):
        case "float_list":
            # The serialized list ends with its numbers; reading these bytes is 100 times faster than a loop.
            numbers = len(feature.float_list.value) * _FLOAT.itemsize
            packed = feature.float_list.SerializeToString()
            return np.frombuffer(packed[len(packed) - numbers :], _FLOAT)
        case "int64_list":
            return np.array(feature.int64_list.value, np.int64)
    return list(feature.bytes_list.value)


def encode(features: Mapping[str, Value]) -> bytes:
    """Return the Example with these features, in the order of their names, so that equal features give equal bytes."""
    example = _example()()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, list):
            kind = feature.bytes_list
        else:
            kind = feature.float_list if value.dtype.kind == "f" else feature.int64_list
        kind.SetInParent()  # sets the kind also for an empty list
        kind.value.extend(value if isinstance(value, list) else value.ravel().tolist())
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


@cache
def _example() -> Any:
    """Return the class of Examples. Protocol buffers are imported only if records are used."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))
