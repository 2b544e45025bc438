"""The LaTeX of a table: the complete text, the format of values, and escaped titles."""

import math
from dataclasses import replace

import pytest

from runner.tables.cells import TableState, state_of
from runner.tables.rendering import as_latex
from tests.tables.test_picture import state


def test_a_table_has_the_best_in_bold_and_states_its_kind_and_seeds_once() -> None:
    assert as_latex(state(sgd=[0.24, 0.26], adam=[0.5])) == (
        """\
% Two optimizers (measured)
% \\usepackage{booktabs}
\\begin{tabular}{lrrr}
\\toprule
 & accuracy & early & time \\\\
\\midrule
SGD & 25.0 $\\pm$ 1.4 \\% & 10 $\\pm$ 0 \\% & 2 $\\pm$ 0 ms \\\\
Adam & \\textbf{\\boldmath 50 \\% (n=1)} &  & 2 ms (n=1) \\\\
None & missing &  &  \\\\
\\bottomrule
\\multicolumn{4}{l}{\\footnotesize Measured: mean $\\pm$ standard deviation over 2 seeds.} \\\\
\\end{tabular}
"""
    )


def with_title(title: str) -> TableState:
    """Return the state of the table whose first row has another title."""
    found = state(sgd=[0.5, 0.5])
    rows = {**found.table.rows, "sgd": replace(found.table.rows["sgd"], title=title)}
    return state_of(replace(found.table, title=title, rows=rows), found.results)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("5 % & $x_1$ #2", "5 \\% \\& \\$x\\_1\\$ \\#2"),
        ("{a} ~ ^ \\", "\\{a\\} \\textasciitilde{} \\textasciicircum{} \\textbackslash{}"),
        ("<b> | é ± ≤", "\\textless{}b\\textgreater{} \\textbar{} é $\\pm$ $\\leq$"),
        ("η=0.1 ResNet-50 --flag", "$\\eta$=0.1 ResNet-50 -{}-flag"),
        ("[a] *b", "{[}a] {*}b"),
        ("two\n lines", "two lines"),
    ],
)
def test_special_characters_of_titles_are_escaped(title: str, expected: str) -> None:
    lines = as_latex(with_title(title)).splitlines()
    assert lines[0] == f"% {' '.join(title.split())} (measured)"
    [row] = [line for line in lines if "10 $\\pm$ 0" in line]
    assert row.split(" & ")[0] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.12345, 0.12367], "12.356 $\\pm$ 0.016 \\%"),
        ([0.1, 0.9], "50 $\\pm$ 57 \\%"),
        ([3.25e-16, 3.45e-16], "3.35$\\times 10^{-14}$ $\\pm$ 1.4$\\times 10^{-15}$ \\%"),
        ([-0.25, -0.26], "$-$25.50 $\\pm$ 0.71 \\%"),
        ([1e8, 1e8], "1$\\times 10^{10}$ $\\pm$ 0 \\%"),
        ([0.5, math.nan], "not finite (1 of 2)"),
    ],
)
def test_a_mean_has_the_decimals_of_two_digits_of_its_deviation(values: list[float], expected: str) -> None:
    [row] = [line for line in as_latex(state(adam=values)).splitlines() if line.startswith("Adam")]
    bold = f"\\textbf{{\\boldmath {expected}}}"
    assert row.split(" & ")[1] == (expected if "finite" in expected else bold)
