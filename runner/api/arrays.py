"""A dataset of arrays in memory."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runner.data.arrays import CLASS_NAMES, Arrays
from runner.errors import DataError
from runner.system.files import create_directory, user_cache_folder, writing

FOLDER = "arrays"
"""The folder, in the user's cache folder, with the arrays that were passed to :func:`arrays`."""


def arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    class_names: Sequence[str] | None = None,
    layout: str | None = None,
    **settings: Any,
) -> Arrays:
    """Return the settings of a dataset of arrays, for ``runner.run(data=...)``.

    x_train, x_test: images of shape (N, H, W), (N, C, H, W) or (N, H, W, C), or rows of features (N, F); dtype uint8 (0
    to 255), float32 or float64. y_train, y_test: integer labels (N,) from 0, or floats (N,) or (N, K) for
    task="regression". class_names: the names of the labels. layout: "nchw" or "nhwc"; None to detect it. settings:
    other keys of ``data=arrays``, such as val_fraction=0.1.

    The arrays are written to ``arrays/SHA256.npz`` in the user's cache folder, so that worker processes, a resumed run
    and the command line read the same data. Equal arrays are written once. Raises DataError for arrays of other shapes
    or types, ResourceError if the file cannot be written.
    """
    given = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    found = {name: np.asarray(value) for name, value in given.items()}
    if class_names is not None:
        found[CLASS_NAMES] = np.array(list(class_names), dtype=np.str_)
    return Arrays(path=_stored(found), layout=layout, **settings)


def _stored(found: dict[str, NDArray[Any]]) -> str:
    """Write arrays to a file that is named by its content, unless it exists; return its path."""
    digest = hashlib.sha256()
    for name, array in found.items():
        if array.dtype.hasobject:
            raise DataError(f"{name} holds Python objects; expected an array of numbers")
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    folder = user_cache_folder() / FOLDER
    path = folder / f"{digest.hexdigest()[:32]}.npz"
    if path.exists():
        return os.fspath(path)
    with writing(str(path), "set XDG_CACHE_HOME to a folder with free space"):
        create_directory(folder)
        # Each process writes in a separate folder first, so that readers find the whole file or none.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            written = os.path.join(own, path.name)
            np.savez(written, **found)  # type: ignore[arg-type]
            os.rename(written, path)
    return os.fspath(path)
