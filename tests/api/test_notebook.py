"""The example notebook runs from its first to its last cell, and a notebook shows a bar."""

import json
import linecache
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

from runner.training.display import Display, NotebookDisplay, create_display

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "session.ipynb"


def code_cells(path: Path) -> list[str]:
    """Return the source of each code cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_example_notebook_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are executed as IPython does: in one module without a file, each with its own source."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    quiet = 'parallelism="single", tracking={"name": "none", "pictures": False}'
    for number, cell in enumerate(code_cells(NOTEBOOK)):
        source = cell.replace('parallelism="single"', quiet)
        name = f"<cell {number}>"
        monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
        exec(compile(source, name, "exec"), vars(module))
    said: Any = SimpleNamespace(**vars(module))
    assert said.accuracy == pytest.approx(said.scores["test/accuracy"])
    assert said.accuracy > 0.5
    assert list(said.sweep.frame()["val_accuracy"]) == sorted(said.sweep.frame()["val_accuracy"], reverse=True)
    assert {name: value.shape for name, value in load_file(here / "small_net.safetensors").items()} == {
        name: value.shape for name, value in said.weights.items()
    }
    source = (said.first.directory / "session" / "model_small_net.py").read_text()
    assert source.startswith('@dataclass\nclass SmallNet(runner.Model):\n    """A convolution')


class FakeHandle:
    """The handle of an output in a notebook; keeps its HTML."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, html: str) -> None:
        self.shown.append(html)


def test_a_notebook_shows_one_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert type(create_display()) is Display
    handle = FakeHandle()
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    shown: Any = ModuleType("IPython.display")
    shown.HTML, shown.display = str, lambda html, display_id: handle
    ipython.display = shown
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    display = create_display()
    assert isinstance(display, NotebookDisplay)
    display.start(2, 10)
    display.step(3, 0.25, 1000.0)
    display.message("step 3: accuracy < 1")
    display.close()
    assert "<progress value='2' max='10'>" in handle.shown[0]
    assert "<progress value='3' max='10'></progress> step 3/10 loss 0.25  1,000 examples/s  ETA" in handle.shown[-1]
    assert handle.shown[-1].endswith("<br>step 3: accuracy &lt; 1")
    assert capsys.readouterr() == ("", "")
    ipython.get_ipython = lambda: SimpleNamespace()
    assert type(create_display()) is Display, "IPython in a terminal is not a notebook"
