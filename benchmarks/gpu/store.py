"""The results of one GPU, in a file that several runs of the command extend."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.limit import Rates
from benchmarks.results import CaseResult, SubjectResult

Key = tuple[str, str]
"""Case and precision."""


@dataclass(frozen=True)
class Measured:
    """A result, the rates of the GPU from the same run of the command, the commit and the date."""

    result: CaseResult
    rates: Rates
    commit: str
    date: str

    @property
    def key(self) -> Key:
        """Return the case and the precision of the result."""
        return self.result.case, self.result.precision


@dataclass
class Store:
    """All results of one GPU. facts: facts about the GPU, by name."""

    facts: Mapping[str, str]
    results: dict[Key, Measured] = field(default_factory=dict)

    def add(self, measured: Measured) -> None:
        """Add a result. The new result replaces an older one unless runner failed only in the new measurement."""
        older = self.results.get(measured.key)
        if older is None or older.result.ours.failure or not measured.result.ours.failure:
            self.results[measured.key] = measured

    def write(self, path: Path) -> None:
        """Write all results as JSON."""
        document = {"facts": dict(self.facts), "results": [asdict(each) for each in self.results.values()]}
        path.write_text(json.dumps(document, indent=1) + "\n")


def read_store(path: Path, facts: Mapping[str, str]) -> Store:
    """Return the content of a file, or an empty store if the file does not exist.

    Raises ValueError if the file has the results of another GPU.
    """
    store = Store(facts)
    if not path.exists():
        return store
    document = json.loads(path.read_text())
    if document["facts"]["device"] != facts["device"]:
        raise ValueError(
            f"{path}: results of {document['facts']['device']}, expected {facts['device']}; choose another folder with "
            "--output"
        )
    for entry in document["results"]:
        store.add(_measured(entry))
    return store


def _measured(entry: Mapping[str, Any]) -> Measured:
    subjects = [SubjectResult(**subject) for subject in entry["result"]["subjects"]]
    result = CaseResult(**{**entry["result"], "subjects": subjects})
    return Measured(**{**entry, "result": result, "rates": Rates(**entry["rates"])})
