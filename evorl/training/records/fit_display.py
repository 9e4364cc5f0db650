"""Progress displays of `fit`: a panel in a terminal; in a notebook, lines and a learning curve that grows."""

import builtins
import sys
import time

import numpy as np

from evorl.errors import OptionError
from evorl.plots.chart import assign_colors, render
from evorl.plots.curves import RETURN_TITLE, compute_intervals, plot_curves
from evorl.training.records.display import ENV_STEPS, LinePrinter, Panel
from evorl.training.records.rows import Row

LABEL = "return"


def open_display(title: str, unit: str = ENV_STEPS) -> LinePrinter | Panel | None:
    """Return a panel in a terminal, lines with a learning curve in a notebook, and None elsewhere."""
    if hasattr(builtins, "__IPYTHON__"):
        return NotebookDisplay(unit)
    return Panel(title, unit=unit) if sys.stdout.isatty() else None


class NotebookDisplay(LinePrinter):
    """Printer of progress lines that also draws the returns of the evaluations so far.

    The curve needs the extra `plot` and a notebook kernel; otherwise, there are only lines.

    Args:
        unit: Unit of the steps.
        pause: Minimum number of seconds between two drawings.
    """

    def __init__(self, unit: str, pause: float = 2.0) -> None:
        super().__init__(every=10.0, unit=unit)
        self._pause, self._drawn, self._can_draw = pause, -np.inf, _has_kernel()
        self._steps: list[float] = []
        self._returns: list[list[float]] = []
        self._handle = None

    def __call__(self, row: Row) -> None:
        super().__call__(row)
        if row["kind"] == "evaluation" and self._can_draw:
            self._steps.append(row["env_steps"])
            self._returns.append(row.get("seeds", {}).get("return", [row["return"]]))
            if time.perf_counter() - self._drawn >= self._pause or row["progress"] >= 1:
                self._draw()

    def _draw(self) -> None:
        from IPython.display import SVG, display

        returns = np.array(self._returns, float)
        found = {LABEL: (np.array(self._steps), returns, compute_intervals(returns))}
        chart = plot_curves(found, assign_colors([LABEL]), self._unit, RETURN_TITLE)
        try:
            picture = SVG(render([chart], "svg", width=420).decode())
        except OptionError:  # the extra is not installed
            self._can_draw = False
            return
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._drawn = time.perf_counter()


def _has_kernel() -> bool:
    """Return whether the process is the kernel of a notebook, not IPython in a terminal."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")
