"""``data.json``: facts about the data at the beginning of a run, stored to detect later changes of the data."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runner.data.dataset import Facts, Normalisation
from runner.data.settings import NOT_DECISIVE, DatasetSettings, limited_facts
from runner.errors import DataError
from runner.fields import Field, labelled
from runner.system.json_file import JsonFile
from runner.system.redaction import redact
from runner.system.schema import LenientRecord
from runner.tracking.records import DataSplit

FACTS_FILE = "data.json"
# Tolerance, in standard deviations: above rounding differences between machines, below the effect of a changed image.
_ROUNDING = 1e-9
_DIGEST_LENGTH = 16


@dataclass(frozen=True)
class DataRecord:
    """Facts about a dataset. normalisation: the normalisation of the network's inputs; None if not stored."""

    facts: Facts
    normalisation: Normalisation | None


@dataclass(frozen=True)
class _Stored:
    """The content of ``data.json``. shape, class_names: used by version 0.1 of runner in place of ``fields``."""

    train_examples: int
    test_examples: int
    val_examples: int = 0
    fields: dict[str, Field] = field(default_factory=dict)
    normalisation: Normalisation | None = None
    shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.normalisation is not None:
            if "x" not in self.facts.fields or not self.facts.shape:
                raise ValueError("normalisation: expected only with a field x, whose first axis is that of channels")
            _valid(self.normalisation, self.facts.shape[0])

    @property
    def facts(self) -> Facts:
        fields = self.fields or labelled(self.shape, self.class_names)
        return Facts(fields, self.train_examples, self.test_examples, self.val_examples)


# The limit, in bytes, is enough for a million class names of 64 characters.
_FILE: JsonFile[_Stored] = JsonFile(
    LenientRecord(_Stored, complete=False),
    DataError,
    "restore the file, or delete it to skip the check for changed data",
    limit=1 << 26,
)


def record_of(data: DatasetSettings) -> DataRecord:
    """Return the current facts about the data and the normalisation, as plain numbers even if a plugin gives arrays.

    If mean and standard deviation are neither known nor set, they are computed from the images. Raises DataError if
    a method of ``data`` raises it, or if a value is invalid.
    """
    facts, found = facts_of(data), data.normalisation()
    try:
        mean, std = (tuple(map(float, values)) for values in (found.mean, found.std))
        return DataRecord(facts, _valid(Normalisation(float(found.scale), mean, std), facts.shape[0]))
    except (ValueError, TypeError) as error:
        raise DataError(f"data={data.name}: {error}; found scale={found.scale}, {found.mean}, {found.std}") from error


def facts_of(data: DatasetSettings) -> Facts:
    """Return the current facts about the data, as plain numbers and text; raises DataError if ``data.facts`` does."""
    facts = data.facts()
    counts = {f"{split}_examples": int(getattr(facts, f"{split}_examples")) for split in ("train", "test", "val")}
    fields = {
        str(name): Field(tuple(map(int, each.shape)), each.dtype, tuple(map(str, each.names)))
        for name, each in facts.fields.items()
    }
    return Facts(fields, **counts)


def splits_of(data: DatasetSettings, seed: int, record: DataRecord) -> list[DataSplit]:
    """Return the splits of a run's dataset, for the tracker.

    The digest of a split covers the settings, the numbers of examples, the classes and the normalisation: all facts
    that are known without reading the images again. seed: the run's seed, which determines the validation split.
    """
    plain = redact({key: value for key, value in asdict(data).items() if key not in ("augment", *NOT_DECISIVE)})
    facts, known = limited_facts(data), [asdict(record.facts), record.normalisation and asdict(record.normalisation)]
    source = getattr(data, "path", "") or f"runner data={data.name}"
    drawn = seed if data.val_fraction else None
    counts = {"train": facts.train_examples, "validation": facts.val_examples, "test": facts.test_examples}
    found = []
    for split, count in counts.items():
        if count:
            document = [split, plain, *known, None if split == "test" else drawn]
            digest = hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
            found.append(DataSplit(data.name, split, digest[:_DIGEST_LENGTH], str(source), count, list(facts.shape)))
    return found


def write_record(run_dir: Path, record: DataRecord) -> None:
    """Write ``record`` to data.json in a run's directory, at the beginning of the run. Raises OSError."""
    facts = {**vars(record.facts), "fields": dict(record.facts.fields)}
    _FILE.write(run_dir / FACTS_FILE, _Stored(**facts, normalisation=record.normalisation))


def read_record(run_dir: Path) -> DataRecord | None:
    """Return the record stored in a run's directory; None if there is none. Raises DataError for a damaged file."""
    path = run_dir / FACTS_FILE
    if not path.exists():
        return None
    stored = _FILE.read(path)
    return DataRecord(stored.facts, stored.normalisation)


def _valid(found: Normalisation, channels: int) -> Normalisation:
    """Return the normalisation; raises ValueError if it is impossible for images with this number of channels."""
    mean, std = found.mean, found.std
    # A single number applies to all channels.
    fits = all(len(values) in (1, channels) for values in (mean, std))
    if not fits or not all(map(math.isfinite, (found.scale, *mean, *std))) or min(found.scale, *std) <= 0:
        raise ValueError("normalisation: expected a scale, and a mean and a deviation for each channel")
    return found


def difference(now: Facts, then: Facts) -> str:
    """Describe the first difference between the fields of ``now`` and of the training data ``then``; "" for none.

    Numbers of examples are not compared, because any number of examples can be scored.
    """
    for name in {**then.fields, **now.fields}:
        found, known = now.fields.get(name), then.fields.get(name)
        if str(found) != str(known):
            return f"the field {name} is {found}, in training it was {known}"
        if found is None or known is None or found.names == known.names:
            continue
        what = "class" if known.is_label else f"number of {name}"
        if len(found.names) != len(known.names):
            return f"there are {len(found.names)} names of a {what}, in training there were {len(known.names)}"
        for number, (mine, its) in enumerate(zip(found.names, known.names, strict=True)):
            if mine != its:
                return f"{what} {number} is {mine!r}, in training it was {its!r}"
    return ""


def changes(now: DataRecord, then: DataRecord) -> str:
    """Describe the differences of the data ``now`` from the data ``then``, at the start of a run; "" if equal."""
    return difference(now.facts, then.facts) or "; ".join([*_counts(now.facts, then.facts), *_rescaled(now, then)])


def _counts(now: Facts, then: Facts) -> Iterator[str]:
    for split in ("train", "test"):
        found, known = (getattr(facts, f"{split}_examples") for facts in (now, then))
        if found != known:
            yield f"there are {found} {split} examples, in training there were {known}"


def _rescaled(now: DataRecord, then: DataRecord) -> Iterator[str]:
    """Yield a description of each difference between the two normalisations; nothing if a record lacks one."""
    if now.normalisation is None or then.normalisation is None:
        return
    found, known = asdict(now.normalisation), asdict(then.normalisation)
    if found["scale"] != known["scale"]:
        yield f"stored pixels are divided by {found['scale']:g}, in training by {known['scale']:g}"
    least = _ROUNDING * min(known["std"])
    for name, word in (("mean", "mean"), ("std", "deviation")):
        pairs = zip(found[name], known[name], strict=False)
        if len(found[name]) != len(known[name]) or any(abs(a - b) > least for a, b in pairs):
            now_is, was = (", ".join(f"{value:.9g}" for value in each[name]) for each in (found, known))
            yield f"the channel {word} is {now_is}, in training {was}"
