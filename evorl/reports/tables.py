"""Tables of final evaluations, in Markdown and in LaTeX."""

import re
from collections.abc import Iterable, Mapping, Sequence

from evorl import stats
from evorl.reports.curves import Curve

LATEX_CHARACTERS = {char: f"\\{char}" for char in "&%$#_{}"}
LATEX_CHARACTERS |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_CHARACTERS |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def make_final_table(found: Mapping[str, Sequence[Curve]], goal: float | None = None) -> list[list[str]]:
    """Return a table of the last evaluation of each curve, its first row the titles of the columns.

    Args:
        found: Curves by environment. With several environments, the table has a column for them.
        goal: Return for a column with the minutes until all seeds have reached it; None for no column.

    Returns:
        Rows of cells.
    """
    several = len(found) > 1
    titles = ["run", *["environment"] * several, "seeds", "env steps per seed", "minutes", "mean [95 %]", "IQM"]
    titles += ["each seed", *([f"minutes until all seeds reach {goal:g}"] if goal is not None else [])]
    rows = [titles]
    for environment, curves in found.items():
        for curve in curves:
            rows.append([curve.label, *[environment] * several, *_final_cells(curve)])
            if goal is not None:
                at = curve.minutes[curve.returns.min(1) >= goal]
                rows[-1].append(f"{at[0]:.1f}" if at.size else "not reached")
    return rows


def _final_cells(curve: Curve) -> list[str]:
    final = curve.returns[-1]
    digits = choose_digits(final)
    mean = f"{stats.MeanEstimate.from_scores(final):.{digits}f}"
    seeds = ", ".join(f"{value:.{digits}f}" for value in final)
    steps, minutes = f"{curve.env_steps[-1]:,.0f}", f"{curve.minutes[-1]:.1f}"
    count = f"{final.size} ({curve.num_diverged} more diverged)" if curve.num_diverged else str(final.size)
    return [count, steps, minutes, mean, f"{stats.iqm(final):.{digits}f}", seeds]


def choose_digits(returns: Iterable[float]) -> int:
    """Return the number of decimals of returns in a table: 0 if one is above 20, otherwise 2."""
    return 0 if max((abs(value) for value in returns), default=0) > 20 else 2


def format_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def format_latex(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in LaTeX, for the package booktabs."""
    lines = [" & ".join(map(escape_latex, row)) + r" \\" for row in rows]
    head = [f"\\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*head, *lines[1:], r"\bottomrule", r"\end{tabular}"])


def escape_latex(text: str) -> str:
    """Return text with the characters escaped that LaTeX would interpret."""
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: LATEX_CHARACTERS[found[0]], text)
