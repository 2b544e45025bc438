"""The page docs/tables.md; `python -m tests.docs.tables` renews its tables, which are made of the committed results."""

from pathlib import Path

from runner.tables.rendering import as_markdown
from tests.tables.own_table import FILES, committed

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

_MARK = "<!-- The rest of this page is made of the committed results by `python -m tests.docs.tables`. -->\n"


def page() -> str:
    """Return the text of the page: the part that is written by hand, up to the mark, and the tables."""
    written, mark, _ = PAGE.read_text().partition(_MARK)
    return "\n".join([written + mark, *(as_markdown(committed(name)) for name in FILES)])


if __name__ == "__main__":
    PAGE.write_text(page())
