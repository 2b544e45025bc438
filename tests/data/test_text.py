"""Texts: words and vocabularies, examples that continue each other, and the user's files."""

import errno
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data import DATASETS, Lm1b, Shakespeare, Text
from runner.data.dataset import Dataset, Normalisation
from runner.data.pipeline import Pipeline
from runner.data.settings import limited_facts, load_limited
from runner.data.text import END, UNKNOWN, examples, most_frequent, tokens, words
from runner.errors import ConfigError, DataError
from runner.fields import BEGINS

AS_STORED = Normalisation(1.0, (0.0,), (1.0,))


def test_words_are_in_lower_case_with_apostrophes_and_punctuation() -> None:
    text = "KING.\n\n  Who's there?--'Tis 2 o'clock,\n"
    assert list(words(text)) == [["king", "."], ["who's", "there", "?", "-", "-", "'", "tis", "2", "o'clock", ","]]


def test_a_vocabulary_is_sorted_by_frequency_with_the_end_and_unknown_words() -> None:
    lines = [["b", "a", "b"], ["c", "a", "b"], ["d"]]
    assert most_frequent(lines, 4) == (END, "b", UNKNOWN, "a")
    assert most_frequent(lines, 3) == (UNKNOWN, END, "b")
    assert most_frequent(lines, 99) == (END, "b", "a", "c", "d", UNKNOWN)
    assert most_frequent([["a", UNKNOWN, UNKNOWN], ["b", "a", END]], 4) == (END, UNKNOWN, "a", "b")
    assert tokens(lines, ("b", END, "a", UNKNOWN)).tolist() == [0, 2, 0, 1, 3, 2, 0, 1, 3, 1]


def test_examples_continue_each_other_and_targets_are_the_next_words() -> None:
    stream = np.arange(10, dtype=np.int32)
    whole = examples(stream, 4, whole=True)
    assert whole["x"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert whole["y"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert whole[BEGINS].tolist() == [1, 0]
    padded = examples(stream, 4, whole=False)
    assert padded["x"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert padded["y"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, -1, -1, -1]]


def pipeline(**options: Any) -> Pipeline:
    """Return a pipeline of examples of one word each, whose numbers are 0, 1, 2, ..."""
    splits = [examples(np.arange(count + 1, dtype=np.int32), 1, whole=True) for count in (11, 7)]
    dataset = Dataset("counting", *splits, AS_STORED)
    return Pipeline(dataset, seed=0, batch_size=3, eval_batch_size=4, dtype="float32", **options)


def rows_of(source: Pipeline, split: str, steps: int, rows: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the examples, the field begins and the mask of each row and step: (steps, rows)."""
    batches = [source.read(split, step, 0, rows) for step in range(steps)]
    assert batches[0]["x"].dtype == batches[0]["y"].dtype == batches[0][BEGINS].dtype == np.int64
    return tuple(np.array([batch[name].reshape(-1) for batch in batches]) for name in ("x", BEGINS, "mask"))


def test_each_row_reads_on_in_the_text_and_every_pass_reads_all_examples() -> None:
    found, begins, mask = rows_of(pipeline(), "train", 11, 3)
    assert found[0].tolist() == [0, 3, 7]
    assert np.array_equal(found[1:], (found[:-1] + 1) % 11)
    assert np.array_equal(begins, (found == 0) | (np.arange(11) == 0)[:, None])
    assert mask.all()
    assert sorted(found.reshape(-1)) == sorted([*range(11)] * 3)
    # After 11 / 3 steps, every example was read once.
    assert sorted({*found[:3].reshape(-1), *found[3, :2]} | {10}) == [*range(11)]


def test_an_evaluation_reads_every_example_once() -> None:
    found, begins, mask = rows_of(pipeline(), "test", 2, 4)
    assert found[mask > 0].tolist() == [0, 1, 3, 5, 2, 4, 6]
    assert begins.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]


def test_a_share_of_a_batch_does_not_depend_on_the_other_shares() -> None:
    whole = pipeline().read("train", 5, 0, 3)
    for name, value in pipeline().read("train", 5, 1, 3).items():
        np.testing.assert_array_equal(value, whole[name][1:])


def test_the_validation_split_is_the_end_of_the_train_split() -> None:
    source = pipeline(val_fraction=0.3)
    found, _, mask = rows_of(source, "val", 1, 4)
    assert found[mask > 0].tolist() == [8, 9, 10]
    assert rows_of(source, "train", 8, 3)[0].max() == 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("the cat sat\n\non the mat\n" * 4)
    (tmp_path / "test.txt").write_text("the dog sat\n")
    return tmp_path


def test_the_users_text_is_read(folder: Path) -> None:
    settings = Text(path=str(folder), steps=2, vocabulary=6)
    facts = settings.facts()
    assert facts.fields["y"].names == ("<end>", "the", UNKNOWN, "cat", "mat", "on")
    assert (facts.train_examples, facts.test_examples) == (15, 2)
    dataset = settings.load()
    assert dataset.test["x"].tolist() == [[1, 2], [2, 0]]
    assert dataset.test["y"].tolist() == [[2, 2], [0, -1]]
    limited = Text(path=str(folder), steps=2, vocabulary=6, train_limit=3)
    assert limited_facts(limited).train_examples == 3
    assert load_limited(limited).train["x"].tolist() == dataset.train["x"][:3].tolist()
    (folder / "train.txt").write_text("a b c d\n")
    assert settings.facts().fields["y"].names == (END, "a", "b", "c", "d", UNKNOWN)


def test_a_text_to_continue_has_the_lines_of_a_training_text(folder: Path) -> None:
    text = "the\fcat\u2028sat\x1c on\r\n\nthe mat\n"
    (folder / "test.txt").write_bytes(text.encode())
    settings = Text(path=str(folder), steps=2)
    assert list(settings.split(text)) == list(settings.lines("test")) == [["the", "cat", "sat", "on"], ["the", "mat"]]


def test_other_splits_of_the_same_files_are_read_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("one two three four\n")
    patterns = (("[ab].txt", "c.txt"), ("a.txt", "[bc].txt"))
    found = [Text(path=str(tmp_path), steps=2, train=train, test=test).facts() for train, test in patterns]
    assert [(each.train_examples, each.test_examples) for each in found] == [(4, 2), (2, 5)]


def test_wrong_texts_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in ("", "/train.txt"):
        with pytest.raises(DataError, match=f"^'{pattern}' is no pattern below data.path="):
            Text(path=str(folder), train=pattern)
    with pytest.raises(DataError, match=r"has no file none\*; expected the test text; set data.test to its name"):
        Text(path=str(folder), test="none*")
    with pytest.raises(ConfigError, match=r"data\.steps=40: the train split has 32 tokens and the test split 4; expe"):
        Text(path=str(folder), steps=40)
    message = r"data\.path is not set: dataset 'text' is read from your files; name a folder"
    with pytest.raises(DataError, match=message):
        Text().require_present()
    (folder / "test.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match=r"test\.txt, line 1: .*; expected text in UTF-8"):
        Text(path=str(folder))

    def refuse(path: Path) -> BinaryIO:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("runner.data.text.open_regular", refuse)
    with pytest.raises(DataError, match=r"train\.txt cannot be read: Permission denied; expected text in UTF-8"):
        Text(path=str(folder))


def test_known_texts_have_facts_without_files(tmp_path: Path) -> None:
    facts = Shakespeare(cache_dir=str(tmp_path)).facts()
    assert (facts.train_examples, facts.test_examples) == (59_194, 6602)
    assert len(facts.fields["y"].names) == 10_000
    facts = DATASETS["lm1b"]().facts()
    assert len(facts.fields["y"].names) == 40_000
    assert facts.train_examples == (798_949_912 - 1) // 20


def test_the_one_billion_word_benchmark_is_read_from_its_folder(tmp_path: Path) -> None:
    train, held_out = (tmp_path / f"{part}-monolingual.tokenized.shuffled" for part in ("training", "heldout"))
    for path in (train / "news.en-00001-of-00100", held_out / "news.en.heldout-00000-of-00050"):
        path.parent.mkdir()
        path.write_text("Mr. Smith said so .\n" * 10)
    assert Lm1b(path=str(tmp_path), vocabulary=8).facts().fields["x"].names[:3] == (".", "<end>", "Mr.")
