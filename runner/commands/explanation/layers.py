"""The part of ``runner explain`` on layers: output, parameters and multiply-adds of each layer."""

from collections.abc import Sequence

from runner.system.text import number, text_table
from runner.training.experiment import Experiment
from runner.training.layers import LayerRow
from runner.training.placement import place_text


def layer_table(rows: Sequence[LayerRow], experiment: Experiment) -> str:
    """Return a table with a row for each layer, and with a column of devices if the strategy placed the layers."""
    headers = ("layer", "kind", "output (one example)", "parameters", "multiply-adds", "activation bytes")
    cells = [
        (r.name, r.kind, r.output, number(r.parameters), number(r.multiply_adds), number(r.activation_bytes))
        for r in rows
    ]
    if experiment.placed is None:
        return text_table(headers, cells)
    placement = experiment.placed.placement
    return text_table(
        (*headers, "device"), [(*cell, place_text(placement, row.name)) for row, cell in zip(rows, cells, strict=True)]
    )


def totals(rows: Sequence[LayerRow]) -> list[str]:
    """Return lines with the sums over all layers."""
    return [
        f"parameters              {number(sum(r.parameters for r in rows))}",
        f"multiply-adds/example   {number(sum(r.multiply_adds for r in rows))} (forward)",
        f"activations/example     {number(sum(r.activation_bytes for r in rows))} bytes (outputs of all layers)",
    ]
