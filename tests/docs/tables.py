"""The page docs/tables.md; `python -m tests.docs.tables` writes the tables again from the committed results."""

from pathlib import Path

from runner.tables.rendering import as_markdown
from tests.tables.own_table import FILES, committed

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

_MARK = "<!-- `python -m tests.docs.tables` writes the rest of this page from the committed results. -->\n"


def page() -> str:
    """Return the text of the page: the part that is written by hand, up to the mark, and the tables."""
    written, mark, _ = PAGE.read_text().partition(_MARK)
    return "\n".join([written + mark, *(as_markdown(committed(name)) for name in FILES)])


if __name__ == "__main__":
    PAGE.write_text(page())
