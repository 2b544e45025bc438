"""Plots of an adaptation to a target domain."""

from collections.abc import Mapping
from pathlib import Path

from runner.tracking.plots import new_figure, save_figure

_INCHES_PER_LAYER = 0.25


def divergence_plot(divergence: Mapping[str, Mapping[str, float]], out_path: Path) -> Path:
    """Draw the divergence of two domains at each layer, one line for each network; return ``out_path``.

    divergence: name of a network -> layer -> nats.
    """
    layers = list(next(iter(divergence.values())))
    figure = new_figure(max(6.0, 2 + _INCHES_PER_LAYER * len(layers)), 4.5)
    axes = figure.add_subplot()
    for network, values in divergence.items():
        axes.plot(range(len(layers)), [values[layer] for layer in layers], marker="o", markersize=3, label=network)
    axes.set_xticks(range(len(layers)), layers, rotation=90, fontsize=7)
    axes.set(ylabel="symmetric divergence (nats, mean over neurons)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return save_figure(figure, out_path)


def target_batches_plot(curve: Mapping[int, Mapping[str, float]], before: Mapping[str, float], out_path: Path) -> Path:
    """Draw metrics over the number of target batches, next to the values before the adaptation; return ``out_path``.

    curve: number of batches -> metric -> value.
    """
    metrics = list(before)
    figure = new_figure(5 * len(metrics), 4)
    for place, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(1, len(metrics), place)
        axes.plot(list(curve), [scores[metric] for scores in curve.values()], marker="o", label="adabn")
        axes.axhline(before[metric], color="tab:gray", linestyle="--", label="source")
        axes.set(xlabel="batches of the target", ylabel=metric, xscale="log")
        axes.set_xticks(list(curve), [str(batches) for batches in curve])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return save_figure(figure, out_path)
