"""Limit OpenMP to one thread: more threads do not speed up small tensors, and the test processes occupy all cores."""

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits

from tests.kernels.cpu.onednn.checking import library


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    library()  # load oneDNN first: only the threads of loaded libraries can be limited
    with threadpool_limits(1, user_api="openmp"):
        yield
