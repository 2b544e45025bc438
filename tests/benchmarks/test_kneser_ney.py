"""The Kneser-Ney model: its formulas, computed in another way, and probabilities that add up to 1."""

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.kneser_ney import BEGIN, KneserNey
from runner.data.text import END

VOCABULARY = (*"abcdefghijklmnopqrstuvwxyz", END)
RNG = np.random.default_rng(5)
LINES = [[VOCABULARY[min(word, 25)] for word in RNG.geometric(0.25, RNG.integers(1, 7)) - 1] for _ in range(60)]


def of_formula(word: str, before: tuple[str, ...]) -> float:
    """Return the probability by the recursion of Chen and Goodman, from lists of n-grams."""
    if not before:
        grams, size = {gram for line in whole() for gram in pairwise(line)}, 1
    elif len(before) == 1:
        grams = {gram for line in whole() for gram in zip(line, line[1:], line[2:], strict=False)}
        size = 2
    else:
        grams, size = set(), 3
    counts: dict[tuple[str, ...], int] = {}
    for line in whole():
        for gram in zip(*(line[k:] for k in range(size)), strict=False):
            if size == 3 or gram[0] == BEGIN:
                counts[gram] = counts.get(gram, 0) + 1
    for gram in grams:
        counts[gram[1:]] = counts.get(gram[1:], 0) + 1
    counts = {gram: count for gram, count in counts.items() if gram != (BEGIN,)}
    n = [sum(count == k for count in counts.values()) for k in range(5)]
    y = n[1] / (n[1] + 2 * n[2])
    d = [0, 1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
    lower = 1 / len(VOCABULARY) if not before else of_formula(word, before[1:])
    after = [counts.get((*before, other), 0) for other in VOCABULARY]
    if not sum(after):
        return lower
    own = counts.get((*before, word), 0)
    left = sum(d[min(count, 3)] for count in after) / sum(after)
    return (own - d[min(own, 3)]) / sum(after) + left * lower


def whole() -> list[list[str]]:
    return [[BEGIN, *line, END] for line in LINES]


@pytest.mark.parametrize("before", [(), ("a",), (BEGIN,), (BEGIN, "a"), ("b", "a"), ("c", "f"), ("never", "a")])
def test_probabilities_equal_the_formula_and_add_up_to_one(before: tuple[str, ...]) -> None:
    model = KneserNey(LINES, VOCABULARY)
    found = [model.probability(word, before) for word in VOCABULARY]
    assert found == pytest.approx([of_formula(word, before) for word in VOCABULARY], rel=1e-12)
    assert sum(found) == pytest.approx(1.0, rel=1e-12)


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="the text is too short: expected n-grams of every length that occur once"):
        KneserNey([["a", "b"]], VOCABULARY)


def test_perplexity_is_that_of_all_words_and_ends() -> None:
    model = KneserNey(LINES, VOCABULARY)
    perplexity, tokens = model.perplexity([["a", "b"], ["c"]])
    chances = [("a", (BEGIN,)), ("b", (BEGIN, "a")), (END, ("a", "b")), ("c", (BEGIN,)), (END, (BEGIN, "c"))]
    product = np.prod([model.probability(*each) for each in chances])
    assert (perplexity, tokens) == (pytest.approx(product ** (-1 / 5)), 5)


def sample(lines: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[f"w{word}" for word in rng.geometric(0.02, rng.integers(1, 9))] for _ in range(lines)]


def test_the_perplexity_is_that_of_kenlm() -> None:
    """The number is that of KenLM 0.3.0 (lmplz -o 3, query), which counts <unk> as one more word."""
    train = sample(3000, seed=1)
    words = {word for line in train for word in line}
    test = [[word for word in line if word in words] for line in sample(200, seed=2)]
    perplexity, tokens = KneserNey(train, (*words, END, "<unk>")).perplexity(test)
    assert tokens == 1083
    assert perplexity == pytest.approx(89.48214050868174, rel=1e-6)
