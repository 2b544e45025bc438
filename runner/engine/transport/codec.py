"""Named arrays to references and frames, and back.

No pickle: bytes are bytes, and the header says what they mean.
Small tensors (feeds, losses) ride inline as payload frames. Bulk tensors go through an arena; see
:mod:`runner.engine.transport.shared_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.transport.references import InlineTensor, TensorReference, dtype_name, view_bytes
from runner.engine.transport.schema import Violation
from runner.engine.transport.shared_memory import ArenaReader
from runner.engine.transport.text import printable
from runner.errors import SecurityError


def pack(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, InlineTensor], tuple[memoryview, ...]]:
    """Return references by name, and the frames they stand for in C order, copied only where they were not.

    Raises ValueError for a dtype that does not travel. The frames alias the arrays; sending copies them.
    """
    references: dict[str, InlineTensor] = {}
    frames: list[memoryview] = []
    for name, array in arrays.items():
        references[name] = InlineTensor(dtype_name(array), array.shape, len(frames))
        # Not ascontiguousarray: that makes a scalar a vector. As bytes, because the buffer protocol cannot
        # cast views with a zero in their shape.
        frames.append(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)
    return references, tuple(frames)


def unpack(
    references: Mapping[str, TensorReference],
    frames: Sequence[memoryview] = (),
    arenas: Mapping[str, ArenaReader] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return read-only arrays by name, without copying.

    ``arenas`` are those that may be referred to, by name; an array in one is valid only until its step ends.
    Raises SecurityError for a reference to what is not there.
    """
    return {name: unpack_one(name, reference, frames, arenas) for name, reference in references.items()}


def unpack_one(
    name: str,
    reference: TensorReference,
    frames: Sequence[memoryview] = (),
    arenas: Mapping[str, ArenaReader] | None = None,
) -> NDArray[Any]:
    """Return the array of one reference as :func:`unpack` does; ``name`` is its key in an arena."""
    if isinstance(reference, InlineTensor):
        if reference.frame >= len(frames):
            raise SecurityError(f"tensor {printable(name)}: frame {reference.frame} of {len(frames)}")
        try:
            return view_bytes(frames[reference.frame], reference.dtype, reference.shape, printable(name))
        except Violation as violation:
            raise SecurityError(f"tensor refused: {violation}") from violation
    arena = (arenas or {}).get(reference.arena)
    if arena is None:
        raise SecurityError(
            f"tensor {printable(name)}: arena {printable(reference.arena)}, expected one of {sorted(arenas or {})}"
        )
    return arena.view(name, reference)
