"""Tasks: the fields that a network reads, its loss, and its metrics with their directions.

Read ``base`` first, then ``measures``, ``classification`` and ``regression``, ``language``, and ``embeddings``.
"""

from runner.tasks.base import Task
from runner.tasks.classification import Classification
from runner.tasks.embeddings import Embeddings
from runner.tasks.language import Language
from runner.tasks.measures import LOSSES, METRICS
from runner.tasks.regression import Regression

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "regression": Regression,
    "language": Language,
    "embeddings": Embeddings,
}
"""Option of the group ``task`` -> the class whose fields are its settings."""

__all__ = ["LOSSES", "METRICS", "TASKS"]
