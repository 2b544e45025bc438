"""One thread of OpenMP: tensors this small are not worth waking a second, and the tests run on every core at once."""

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits

from tests.kernels.cpu.onednn.checking import library


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    library()  # only a loaded library can be limited
    with threadpool_limits(1, user_api="openmp"):
        yield
