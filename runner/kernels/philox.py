"""Counter-based random numbers: every draw is a pure function of a key and a counter.

The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"). A draw does not
depend on the process or device that computes it or on the order of draws. Data order, augmentation, dropout and
initial values are therefore independent of the number of workers.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Key = tuple[int, int]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_ROUNDS = 10
_PAIRS_AT_ONCE = 1 << 14
"""The number of pairs of normal draws per block, small enough that the working arrays stay in the CPU cache."""


def key(seed: int, name: str) -> Key:
    """Return the two 32-bit key words of the random stream ``name`` for ``seed``."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _philox(
    stream: Key, c0: NDArray[np.uint64], c1: NDArray[np.uint64], c2: NDArray[np.uint64], c3: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], ...]:
    """Apply ten Philox rounds to four counter words (32-bit numbers stored as uint64); return four words."""
    k0, k1 = stream
    for _ in range(_ROUNDS):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> _SHIFT_32) ^ c1 ^ np.uint64(k0),
            product_1 & _LOW_32,
            (product_0 >> _SHIFT_32) ^ c3 ^ np.uint64(k1),
            product_0 & _LOW_32,
        )
        k0 = (k0 + _WEYL_0) & 0xFFFFFFFF
        k1 = (k1 + _WEYL_1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def bits(stream: Key, index: NDArray[np.int64], count: int, step: int = 0, first: int = 0) -> NDArray[np.uint32]:
    """Return random words (S, count) uint32: for each entry of ``index`` (S,), the words from position ``first`` on.

    The counter is (position // 4, low half of index, high half of index, step). Therefore a word does not depend on
    the other indices and positions of the call.
    """
    low, high = first // 4, -(-(first + count) // 4)
    shape = (len(index), high - low)
    wide = np.asarray(index, np.int64).astype(np.uint64)[:, None]
    words = _philox(
        stream,
        np.broadcast_to(np.arange(low, high, dtype=np.uint64)[None, :], shape),
        np.broadcast_to(wide & _LOW_32, shape),
        np.broadcast_to(wide >> _SHIFT_32, shape),
        np.full(shape, step & 0xFFFFFFFF, np.uint64),
    )
    flat = np.stack(words, axis=-1).reshape(len(index), 4 * (high - low))
    return flat[:, first % 4 : first % 4 + count].astype(np.uint32)


def uniform(stream: Key, index: NDArray[np.int64], count: int, step: int = 0, first: int = 0) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), (S, count) float64, each from one word of :func:`bits`."""
    return bits(stream, index, count, step, first).astype(np.float64) * 2.0**-32


def normal_parts(stream: Key, count: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield ``count`` standard normal numbers (float64, Box-Muller) in blocks, each with the slice of its positions.

    Blocks keep the working memory small. The first half of the uniform draws gives the radii, the second half the
    angles. Pair i gives the normal numbers i and i + (count + 1) // 2.
    """
    pairs = (count + 1) // 2
    for start in range(0, pairs, _PAIRS_AT_ONCE):
        stop = min(start + _PAIRS_AT_ONCE, pairs)
        first, second = (
            uniform(stream, np.zeros(1, np.int64), stop - start, first=low)[0] for low in (start, pairs + start)
        )
        radius = np.sqrt(-2.0 * np.log1p(-first))
        angle = 2.0 * np.pi * second
        yield slice(start, stop), radius * np.cos(angle)
        sines = radius * np.sin(angle)
        yield slice(pairs + start, min(pairs + stop, count)), sines[: count - pairs - start]


def permutation(stream: Key, n: int) -> NDArray[np.int64]:
    """Return a permutation of 0..n-1 as (n,) int64: the order that sorts n 64-bit draws, equal draws by position."""
    words = bits(stream, np.zeros(1, np.int64), 2 * n)[0].astype(np.uint64)
    return np.argsort((words[:n] << _SHIFT_32) | words[n:], kind="stable").astype(np.int64)
