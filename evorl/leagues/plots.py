"""Plots of a league: payoffs of policies, their weights, and NashConv.

The argument plt is matplotlib.pyplot, as evorl.command.pyplot returns it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

COLORMAP, MAX_LABELLED = "RdBu", 12  # diverging around 0; most policies with text in the cells

DARK = 0.6  # fraction of the largest payoff above which the text of a cell is white


def plot_payoffs(plt: Any, mean: Any, names: Sequence[str], errors: Any = None) -> Any:
    """Plot the payoff of each row against each column, shape [n, n], as a figure.

    With at most 12 policies, the cells contain the payoffs and their standard errors.
    """
    mean = np.asarray(mean)
    size = 2 + 0.5 * len(names)
    figure, axis = plt.subplots(figsize=(size + 1, size))
    largest = max(float(np.nanmax(np.abs(mean))), 1e-9)
    image = axis.imshow(mean, cmap=COLORMAP, vmin=-largest, vmax=largest)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    for i, j in np.ndindex(*mean.shape) if len(names) <= MAX_LABELLED else ():
        error = "" if errors is None else f"\n±{np.asarray(errors)[i, j]:.2g}"
        color = "white" if abs(mean[i, j]) > DARK * largest else "black"
        axis.text(j, i, f"{mean[i, j]:.2g}{error}", ha="center", va="center", fontsize=7, color=color)
    figure.colorbar(image, label="payoff of the row player")
    figure.tight_layout()
    return figure


def plot_iterations(plt: Any, weights: Any, nash_conv: Any = None) -> Any:
    """Plot one player's weights, shape [iterations, capacity], above NashConv, shape [iterations], as a figure."""
    rows = 1 if nash_conv is None else 2
    figure, axes = plt.subplots(rows, 1, figsize=(6, 1 + 2.5 * rows), sharex=True, squeeze=False)
    shown = np.asarray(weights).T
    image = axes[0, 0].imshow(shown, aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
    axes[0, 0].set_ylabel("policy")
    figure.colorbar(image, ax=list(axes[:, 0]), label="weight")
    if nash_conv is not None:
        axes[1, 0].plot(np.asarray(nash_conv))
        axes[1, 0].set_yscale("log")
        axes[1, 0].set_ylabel("NashConv")
        axes[1, 0].grid(alpha=0.3)
    axes[-1, 0].set_xlabel("iteration")
    for axis in (axes[-1, 0].xaxis, axes[0, 0].yaxis):
        axis.get_major_locator().set_params(integer=True)
    return figure
