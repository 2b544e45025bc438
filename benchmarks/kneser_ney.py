"""The perplexity of an interpolated modified Kneser-Ney trigram model, to which language models are compared.

``python -m benchmarks.kneser_ney`` trains on the train split of data=shakespeare and scores the test split. Words
outside of the vocabulary are the same token, and every line ends with the same token, as for task=language.

Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling", section 4.1.6, with the
counts of KenLM (Heafield et al. 2013): trigrams have their counts; shorter n-grams have the number of different words
before them, but their counts if they begin a line. A line begins with one mark, which is never predicted. Words are
finally interpolated with the uniform distribution.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.data.shakespeare import Shakespeare
from runner.data.text import END, UNKNOWN, Lines, most_frequent

BEGIN = "<begin>"
Words = tuple[str, ...]


@dataclass(frozen=True)
class _Context:
    """The words after a context. total: sum of their counts. left: share of the probability for shorter n-grams."""

    total: float
    left: float


class KneserNey:
    """A trigram model of lines of words in a vocabulary."""

    def __init__(self, lines: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> None:
        """lines: without the tokens at their ends; all words must be in the vocabulary."""
        self._uniform = 1.0 / len(vocabulary)
        trigrams, begun = Counter[Words](), Counter[Words]()
        for line in lines:
            words = (BEGIN, *line, END)
            trigrams.update(zip(words, words[1:], words[2:], strict=False))
            begun[words[:2]] += 1
        bigrams = Counter(each[1:] for each in trigrams) + begun
        unigrams = Counter(each[1:] for each in bigrams)
        self._counts = {1: unigrams, 2: bigrams, 3: trigrams}
        self._discounts = {order: _discounts(counts) for order, counts in self._counts.items()}
        self._contexts = {order: self._of_contexts(order) for order in self._counts}

    def probability(self, word: str, before: Words) -> float:
        """Return the probability of a word after up to two words, the first of which may be the mark of a beginning."""
        found = self._uniform
        for length in range(len(before) + 1):
            context = before[len(before) - length :]
            known = self._contexts[length + 1].get(context)
            if known is not None:
                count = self._counts[length + 1].get((*context, word), 0)
                found = max(0.0, count - self._discount(length + 1, count)) / known.total + known.left * found
        return found

    def perplexity(self, lines: Iterable[Sequence[str]]) -> tuple[float, int]:
        """Return the perplexity of lines, ends included, and the number of tokens."""
        total, tokens = 0.0, 0
        for line in lines:
            words = (BEGIN, *line, END)
            for place, word in enumerate(words[1:], start=1):
                total -= math.log(self.probability(word, words[max(0, place - 2) : place]))
                tokens += 1
        return math.exp(total / tokens), tokens

    def _discount(self, order: int, count: int) -> float:
        return self._discounts[order][min(count, 3)]

    def _of_contexts(self, order: int) -> dict[Words, _Context]:
        totals, discounted = defaultdict[Words, float](float), defaultdict[Words, float](float)
        for words, count in self._counts[order].items():
            totals[words[:-1]] += count
            discounted[words[:-1]] += self._discount(order, count)
        return {context: _Context(total, discounted[context] / total) for context, total in totals.items()}


def _discounts(counts: Counter[Words]) -> tuple[float, float, float, float]:
    """Return the discounts of the counts 0, 1, 2, and 3 or more (equation 26)."""
    of = Counter(count for count in counts.values() if count <= 4)
    if min(of[count] for count in (1, 2, 3, 4)) == 0:
        raise ValueError("the text is too short: expected n-grams of every length that occur once, 2, 3 and 4 times")
    share = of[1] / (of[1] + 2 * of[2])
    one, two, three = (count - (count + 1) * share * of[count + 1] / of[count] for count in (1, 2, 3))
    return 0.0, one, two, three


def main() -> None:
    """Print the perplexity of the test split."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kneser_ney", description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=10_000, help="number of different tokens (default: 10000)")
    size = parser.parse_args().vocabulary
    data = Shakespeare(vocabulary=size)
    vocabulary = most_frequent(data.lines("train"), size)
    model = KneserNey(_known(data.lines("train"), vocabulary), vocabulary)
    perplexity, tokens = model.perplexity(_known(data.lines("test"), vocabulary))
    print(f"interpolated modified Kneser-Ney trigrams: perplexity {perplexity:.2f} of {tokens:,} tokens")


def _known(lines: Lines, vocabulary: Sequence[str]) -> list[list[str]]:
    words = set(vocabulary)
    return [[word if word in words else UNKNOWN for word in line] for line in lines]


if __name__ == "__main__":
    main()
