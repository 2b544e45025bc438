"""Text as sequences of words: the vocabulary, the examples of a language model, and the user's text files.

A text is a list of lines, each a list of words. Every line ends with the token :data:`END`. Words outside of the
vocabulary become the token :data:`UNKNOWN`. The tokens of a split form one stream. Example c has the T tokens from
position c T on as its input, and the T tokens from position c T + 1 on as its target.
"""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, SmallCount
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.data.own_files import OwnFiles
from runner.data.records.shards import matching_files
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError, DataError
from runner.fields import BEGINS, LABEL, Field
from runner.system.files import open_regular

END, UNKNOWN = "<end>", "<unk>"
PADDING = -1
"""The target at positions of the last test example for which there is no next token."""

Lines = Iterable[Sequence[str]]
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|[^\sa-z0-9]")
_AS_STORED = Normalisation(1.0, (0.0,), (1.0,))


def words(text: str) -> Iterator[list[str]]:
    """Yield the lower-case words of each line that has any. Apostrophes in words are kept; other marks are words."""
    for line in text.lower().splitlines():
        if found := _WORD.findall(line):
            yield found


def most_frequent(lines: Lines, size: int) -> tuple[str, ...]:
    """Return END, UNKNOWN and the ``size`` - 2 most frequent words of a text, in descending order of frequency.

    Equally frequent words are in alphabetical order. UNKNOWN is as frequent as all excluded words together. END and
    UNKNOWN may also be words of the text.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
        counts[END] += 1
    kept = sorted(counts.keys() - {END, UNKNOWN}, key=lambda word: (-counts[word], word))[: size - 2]
    found = {word: counts[word] for word in (*kept, END)}
    found[UNKNOWN] = counts.total() - sum(found.values())
    return tuple(sorted(found, key=lambda word: (-found[word], word)))


def tokens(lines: Lines, vocabulary: Sequence[str]) -> NDArray[np.int32]:
    """Return the tokens (L,) of all words and line ends, as positions in the vocabulary."""
    number = {word: position for position, word in enumerate(vocabulary)}
    end, unknown = number[END], number[UNKNOWN]
    found = ((*(number.get(word, unknown) for word in line), end) for line in lines)
    return np.fromiter(chain.from_iterable(found), np.int32)


def examples(stream: NDArray[np.int32], steps: int, *, whole: bool) -> Split:
    """Return a stream of tokens (L,) as the examples of ``steps`` tokens that the module docstring describes.

    whole: whether to leave out an incomplete last example; if false, it is padded, with PADDING as targets.
    """
    count = example_count(len(stream), steps, whole=whole)
    padded = stream
    if not whole:
        padded = np.full(count * steps + 1, PADDING, np.int32)
        padded[: len(stream)] = stream
    inputs, targets = (padded[first : first + count * steps].reshape(count, steps) for first in (0, 1))
    begins = np.zeros(count, np.int64)
    begins[:1] = 1
    return Split({"x": np.maximum(inputs, 0), "y": targets, BEGINS: begins})


def example_count(length: int, steps: int, *, whole: bool) -> int:
    """Return the number of examples of ``length`` tokens; see :func:`examples`."""
    return (length - 1) // steps if whole else -(-(length - 1) // steps)


@dataclass
class TextSettings(DatasetSettings):
    """Settings of a text dataset.

    steps: the number T of tokens of an example; gradients are propagated back through these tokens only.
    vocabulary: the number of different tokens.
    """

    steps: SmallCount = 20
    vocabulary: Annotated[int, Bounds(3, 10**7)] = 10_000

    @abstractmethod
    def read(self) -> "Tokens":
        """Return the tokens of both splits. Raises DataError if the text cannot be read."""

    def split(self, text: str) -> Lines:
        """Return the words of each line of a text; lines without words are left out."""
        return (found for line in text.split("\n") if (found := line.split()))

    def contexts(self, paths: Sequence[Path]) -> list[tuple[str, NDArray[np.int32]]]:
        """Return the last ``steps`` words (T,) of the text in each file, with its path.

        The last line gets no END, so that its next word can be predicted. A shorter text is padded with END at the
        beginning. Raises DataError for a file that is not text in UTF-8.
        """
        vocabulary, found = self.read().vocabulary, []
        end = vocabulary.index(END)
        for path in paths:
            try:
                with open_regular(path) as file:
                    text = file.read().decode("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{path}: {error}; expected a text in UTF-8") from error
            given = tokens(self.split(text), vocabulary)[:-1][-self.steps :]
            found.append((str(path), np.concatenate([np.full(self.steps - len(given), end, np.int32), given])))
        return found

    def facts(self) -> Facts:
        """Return the vocabulary and the numbers of examples, which are known after reading the text once."""
        read = self.read()
        return self.facts_for(read.vocabulary, len(read.train), len(read.test), read.counts)

    def facts_for(self, vocabulary: tuple[str, ...], train: int, test: int, word_counts: tuple[int, ...] = ()) -> Facts:
        """Return the facts for a vocabulary and numbers of tokens. Raises ConfigError if a split has no example.

        word_counts: number of occurrences of each word in the training split; () if unknown.
        """
        counts = [example_count(count, self.steps, whole=whole) for count, whole in ((train, True), (test, False))]
        if min(counts) < 1:
            fault = f"the train split has {train} tokens and the test split {test}"
            advice = "expected more tokens than data.steps; use fewer steps or a longer text"
            raise ConfigError(f"data.steps={self.steps}: {fault}; {advice}")
        shape = (self.steps,)
        fields = {
            "x": Field(shape, LABEL, vocabulary, word_counts),
            "y": Field(shape, LABEL, vocabulary),
            BEGINS: Field((), LABEL),
        }
        return Facts(fields, *counts)

    def normalisation(self) -> Normalisation:
        """Return the normalisation that changes nothing, because inputs are positions in the vocabulary."""
        return _AS_STORED

    def load(self) -> Dataset:
        read = self.read()
        train, test = examples(read.train, self.steps, whole=True), examples(read.test, self.steps, whole=False)
        return Dataset(self.name, train, test, _AS_STORED)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: positions in its vocabulary, (L,) for each split."""

    vocabulary: tuple[str, ...]
    train: NDArray[np.int32]
    test: NDArray[np.int32]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of occurrences of each word in the training split."""
        return tuple(np.bincount(self.train, minlength=len(self.vocabulary)).tolist())


_READ: dict[tuple[object, ...], Tokens] = {}
"""Cache of the texts that this process read last, key -> tokens, because facts are requested many times."""
_MOST_KEPT = 2


@dataclass
class LineSettings(TextSettings):
    """Settings of a text that is read line by line, with a vocabulary of its most frequent words."""

    @abstractmethod
    def lines(self, split: str) -> Lines:
        """Return the lines of split "train" or "test". Raises DataError if the text cannot be read."""

    @abstractmethod
    def stamp(self) -> tuple[object, ...]:
        """Return a key that changes with the content of the text."""

    def read(self) -> Tokens:
        key = (type(self), self.stamp(), self.vocabulary)
        if key not in _READ:
            vocabulary = most_frequent(self.lines("train"), self.vocabulary)
            read = Tokens(vocabulary, *(tokens(self.lines(split), vocabulary) for split in ("train", "test")))
            for oldest in list(_READ)[: len(_READ) + 1 - _MOST_KEPT]:
                del _READ[oldest]
            _READ[key] = read
        return _READ[key]


@dataclass
class Text(OwnFiles, LineSettings):
    """The user's text in UTF-8: one sentence per line, with blanks between the words.

    path: a folder with the text files. train, test: patterns of the files of each split, which are read in alphabetical
    order. Settings without a path can be created, but have no facts.
    """

    name: str = "text"
    train: str = "train.txt"
    test: str = "test.txt"

    @property
    def ask(self) -> str:
        return f"name a folder with the files {self.train} and {self.test}, as in data={self.name} data.path=my_text"

    def facts_of_files(self) -> Facts:
        return LineSettings.facts(self)

    def lines(self, split: str) -> Lines:
        for path in self._files(split):
            try:
                with open_regular(path) as file:
                    for number, line in enumerate(file, start=1):
                        try:
                            found = line.decode("utf-8").split()
                        except UnicodeDecodeError as error:
                            raise DataError(f"{path}, line {number}: {error}; expected text in UTF-8") from error
                        if found:
                            yield found
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}; expected text in UTF-8") from error

    def stamp(self) -> tuple[object, ...]:
        """Return the patterns of the splits, and the name, the size and the time of the last change of each file."""
        files = [path for split in ("train", "test") for path in self._files(split)]
        return (self.train, self.test, *((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files))

    def _files(self, split: str) -> list[Path]:
        pattern = self.train if split == "train" else self.test
        if found := matching_files(Path(self.path), pattern):
            return found
        raise DataError(f"{self.path} has no file {pattern}; expected the {split} text; set data.{split} to its name")


@dataclass
class Lm1b(Text):
    """The One Billion Word Benchmark (Chelba et al. 2013), in the user's files.

    path: the unpacked folder ``1-billion-word-language-modeling-benchmark-r13output``. Without a path, the facts are
    those of the published benchmark, so that networks can be planned: 768,648,884 words in 30,301,028 sentences for
    training, and 159,658 tokens in the first held-out file, with which results are reported.
    """

    name: str = "lm1b"
    train: str = "training-monolingual.tokenized.shuffled/news.en-*"
    test: str = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
    vocabulary: Annotated[int, Bounds(3, 10**7)] = 40_000

    def published_facts(self) -> Facts:
        """Return the facts of the benchmark, with numbers as the names of the words."""
        return self.facts_for(tuple(map(str, range(self.vocabulary))), 768_648_884 + 30_301_028, 159_658)
