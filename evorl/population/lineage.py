"""Lineages of population-based training, reconstructed from the rows of a training log."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from evorl.errors import require

GenerationTable = np.ndarray  # [generations, n]


def ancestry(source: GenerationTable) -> GenerationTable:
    """Return the index of the first member that each member descends from, shape [generations + 1, n].

    `source` holds the parent of each member, shape [generations, n]. Row g of the result describes the
    members that train in generation g, before they copy members source[g]; the last row describes the final
    members.
    """
    founders = [np.arange(source.shape[1])]
    for parents in source:
        founders.append(founders[-1][parents])
    return np.stack(founders)


def branches(source: GenerationTable, values: GenerationTable) -> np.ndarray:
    """Return line segments from each parent to its child, shape [generations, n, 2, 2], for a plot.

    The last axis is (generation, value), and generations count from 1. `values` has shape [generations + 1,
    n]. A member that was not replaced is its own parent.
    """
    generations, n = source.shape
    at = np.broadcast_to(np.arange(1, generations + 2)[:, None], (generations + 1, n))
    parents = np.take_along_axis(values[:-1], source, axis=1)
    return np.stack([np.stack([at[:-1], parents], -1), np.stack([at[1:], values[1:]], -1)], -2)


def member_history(rows: Iterable[dict[str, Any]], seed: int = 0, population: int = 0) -> dict[str, GenerationTable]:
    """Return the values of all members in each generation by name, [generations, n], from a training log.

    `seed` is an index among the seeds, and `population` one among the populations of a nested population. The
    result is empty if the log has no members. NaN replaces null. Raises OptionError if an index is out of
    range, or if the names differ in their generations or members.
    """
    tables: dict[str, list[Any]] = {}
    for row in rows:
        if row["kind"] == "train":
            for name, values in row.get("members", {}).items():
                require(0 <= seed < len(values), "seed", seed, f"must be below {len(values)}")
                tables.setdefault(name, []).extend(values[seed])
    found = {}
    for name, values in tables.items():
        whole = np.asarray(values, float)
        require(whole.size > 0, name, "[]", "must have values of members")
        whole = whole.reshape(len(whole), -1, whole.shape[-1])
        if name == "source":
            known = ((whole >= 0) & (whole < whole.shape[-1]) & (whole % 1 == 0)).all()
            require(bool(known), name, whole.tolist(), "must be indices of members")
            whole = whole.astype(int)
        require(0 <= population < whole.shape[1], "population", population, f"must be below {whole.shape[1]}")
        found[name] = whole[:, population]
        first = next(iter(found))
        same = f"must have the generations and members of {first}, {found[first].shape}"
        require(found[name].shape == found[first].shape, name, found[name].shape, same)
    return found


def choose_axis_scale(name: str, values: GenerationTable) -> tuple[str, GenerationTable, str]:
    """Return the label, the values and the scale ("linear" or "log") of a plot axis.

    The scale is logarithmic if the finite values, their negatives, or 1 minus them are positive and span a
    decade.
    """
    finite = values[np.isfinite(values)]
    views = {name: (finite, values), f"-{name}": (-finite, -values)}
    if finite.size and finite.min() >= 0:
        views[f"1 - {name}"] = 1 - finite, 1 - values
    for label, (positive, shown) in views.items():
        if positive.size and positive.min() > 0 and positive.max() >= 10 * positive.min():
            return label, shown, "log"
    return name, values, "linear"
