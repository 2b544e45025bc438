"""Mutations of bytes and of plain data, drawn from a random generator; equal seeds give equal mutations."""

import copy
import math
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

INTEGERS = [0, 1, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]
VALUES: list[Any] = [
    *(None, True, False, -1, *INTEGERS, -0.0, 1e-320, 1e308, math.inf, math.nan),
    *("", "x", "\x00", "../../x", "x" * 5000, "\U0001f4a5", [], {}, [[[[]]]], {"_target_": "os.system"}),
]
_MOST_CHANGES = 4
_LONGEST_COPY = 64


def mutated_bytes(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of the seeds after one to four changes of its bytes, or rarely without a change."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randrange(_MOST_CHANGES + 1)):
        at = random.randrange(len(data) + 1)
        random.choice(_CHANGES)(random, data, at, seeds)
    return bytes(data)


def _flip(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    if at < len(data):
        data[at] ^= 1 << random.randrange(8)


def _replace(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    data[at : at + 1] = random.randbytes(1)


def _truncate(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    del data[at:]


def _delete(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    del data[at : at + random.randrange(1, _LONGEST_COPY)]


def _insert(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    data[at:at] = random.randbytes(random.randrange(1, 9))


def _repeat(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    data[at:at] = data[at : at + random.randrange(1, _LONGEST_COPY)] * random.choice((1, 2, 200))


def _integer(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    """Write an integer at a limit of its type, in either byte order, over the bytes."""
    code, mask = random.choice((("B", 0xFF), ("H", 0xFFFF), ("I", 0xFFFF_FFFF), ("Q", 2**64 - 1)))
    written = struct.pack(random.choice("<>") + code, random.choice(INTEGERS) & mask)
    data[at : at + len(written)] = written


def _splice(random: Random, data: bytearray, at: int, seeds: Sequence[bytes]) -> None:
    """Continue with the rest of another seed."""
    other = random.choice(seeds)
    data[at:] = other[random.randrange(len(other) + 1) :]


_CHANGES = (_flip, _replace, _truncate, _delete, _insert, _repeat, _integer, _splice)


def mutated_data(random: Random, seeds: Sequence[Any]) -> Any:
    """Return a copy of one of the seeds (maps, lists and scalars) after one to four changes of its values or keys."""
    root = [copy.deepcopy(random.choice(seeds))]
    for _ in range(random.randrange(1, _MOST_CHANGES + 1)):
        places = list(_places(root))
        holder, key = random.choice(places)
        change = random.randrange(6)
        if change == 0 and len(places) > 1 and holder is not root:
            del holder[key]
        elif change == 1 and isinstance(holder, dict):
            holder[random.choice(["", "x", "_target_", "v", "kind"])] = holder[key]
        elif change == 2 and isinstance(holder, list) and holder is not root:
            holder.insert(key, copy.deepcopy(holder[key]))
        elif change == 3:
            other, place = random.choice(places)
            holder[key] = copy.deepcopy(other[place])
        else:
            holder[key] = copy.deepcopy(random.choice(VALUES))
    return root[0]


def _places(value: Any) -> Any:
    """Yield (map or list, key) of all values inside a value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
