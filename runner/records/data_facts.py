"""``data.json``: what the data of a run were when it began, for whoever uses its network after they changed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from runner.data.dataset import Facts
from runner.errors import DataError
from runner.files import read_regular, replace_durably

FACTS_FILE = "data.json"
_VERSION = 1
# A million classes with names of 64 characters.
_MAX_BYTES = 1 << 26


def write_facts(run_dir: Path, facts: Facts) -> None:
    """Keep the facts of the data that a run begins with. Raises OSError where they cannot be written."""
    document = {"version": _VERSION, **asdict(facts)}
    replace_durably(run_dir / FACTS_FILE, (json.dumps(document, indent=1) + "\n").encode())


def read_facts(run_dir: Path) -> Facts | None:
    """Return what :func:`write_facts` kept, None where a run kept nothing. Raises DataError for a damaged file."""
    path = run_dir / FACTS_FILE
    if not path.exists():
        return None
    try:
        document = json.loads(read_regular(path, _MAX_BYTES))
        if document.pop("version") != _VERSION:
            raise ValueError("another version")
        shape, names = document.pop("shape"), document.pop("class_names")
        channels, height, width = map(int, shape)
        return Facts((channels, height, width), tuple(map(str, names)), **{key: int(n) for key, n in document.items()})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: {error}; expected version {_VERSION}, shape, class_names and the numbers of examples; "
            "without the file changes of the data go unnoticed"
        ) from error


def difference(now: Facts, then: Facts) -> str:
    """In what data are of another kind than those a network was trained on; "" where they are not.

    Numbers of examples may differ: more may be scored than there were.
    """
    if now.shape != then.shape:
        return f"images are {now.shape}, in training they were {then.shape}"
    if now.classes != then.classes:
        return f"there are {now.classes} classes, in training there were {then.classes}"
    for label, (name, known) in enumerate(zip(now.class_names, then.class_names, strict=True)):
        if name != known:
            return f"class {label} is {name!r}, in training it was {known!r}"
    return ""
