"""The page docs/tables.md, made of the committed results; `python -m tests.docs.tables` writes it."""

from pathlib import Path

from runner.commands.table import current_lines
from runner.config.conf_dir import conf_dir
from runner.tables.rendering import as_markdown
from runner.tables.sizes import composed
from runner.tables.table_file import read_table, table_names

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

_HEAD = """\
# Tables of papers

A table is a YAML file, `conf/table/NAME.yaml`: papers with their published values, runs (configurations), and rows and
columns whose cells read values from the runs. The values that were computed are committed under `results/NAME/`.

```bash
runner table list
runner table show network_sizes
runner table export network_sizes --format csv --output sizes.csv
```

`runner table run NAME` computes what is missing or stale. A value is stale if the configuration of its run changed
since. A table of your own is a file `DIR/table/NAME.yaml`, used with `--config-dir DIR`; its results are written beside
`DIR`.

The kind says how the values came about. Today all tables are of the kind *count*: sizes of networks, counted in the
graph; nothing is trained. Each published value has the code of its confidence. A value *passes* or *fails* against what
a paper states (codes S and P), within a tolerance that the file states; `rounding` is half a unit of the last printed
digit. Against a value that follows from a published specification (C and D) it *agrees* or *differs*. A value without
tolerance, or with another code, is context and decides nothing.
"""


def page() -> str:
    """Return the text of the page."""
    pages = []
    for path in table_names([conf_dir()]).values():
        table = read_table(path)
        pages.append(as_markdown(table, current_lines(table, path, composed(table))))
    return "\n".join([_HEAD, *pages])


if __name__ == "__main__":
    PAGE.write_text(page())
