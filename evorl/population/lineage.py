"""Lineages: who took over from whom in a population, told from the rows of its training."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from evorl.errors import require

GenerationTable = np.ndarray  # [generations, n]


def ancestry(source: GenerationTable) -> GenerationTable:
    """Which of the first members each one descends from, [generations + 1, n], of the parents [generations, n].

    Row g is of those that train in generation g, which then take over from source[g]; the last row is of those left.
    """
    founders = [np.arange(source.shape[1])]
    for parents in source:
        founders.append(founders[-1][parents])
    return np.stack(founders)


def branches(source: GenerationTable, values: GenerationTable) -> np.ndarray:
    """Lines from each parent to its child, [generations, n, 2, 2] as (generation, value), of values in generations + 1.

    Generations count from 1. A member that lives on is its own parent.
    """
    generations, n = source.shape
    at = np.broadcast_to(np.arange(1, generations + 2)[:, None], (generations + 1, n))
    parents = np.take_along_axis(values[:-1], source, axis=1)
    return np.stack([np.stack([at[:-1], parents], -1), np.stack([at[1:], values[1:]], -1)], -2)


def member_history(rows: Iterable[dict[str, Any]], seed: int = 0, population: int = 0) -> dict[str, GenerationTable]:
    """What members had in each generation of a training, by name, [generations, n], from its rows in their order.

    seed is the place among the seeds, population that among the populations of a population of them. Empty where there
    were no members. NaN stands for null.
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
        whole = whole.reshape(len(whole), -1, whole.shape[-1])
        if name == "source":
            known = ((whole >= 0) & (whole < whole.shape[-1]) & (whole % 1 == 0)).all()
            require(bool(known), name, whole.tolist(), "must be numbers of members")
            whole = whole.astype(int)
        require(0 <= population < whole.shape[1], "population", population, f"must be below {whole.shape[1]}")
        found[name] = whole[:, population]
    return found


def choose_axis_scale(name: str, values: GenerationTable) -> tuple[str, GenerationTable, str]:
    """The label, values and scale of an axis, "log" where the values, their negatives or 1 minus them span a decade."""
    finite = values[np.isfinite(values)]
    views = {name: (finite, values), f"-{name}": (-finite, -values)}
    if finite.size and finite.min() >= 0:
        views[f"1 - {name}"] = 1 - finite, 1 - values
    for label, (positive, shown) in views.items():
        if positive.size and positive.min() > 0 and positive.max() >= 10 * positive.min():
            return label, shown, "log"
    return name, values, "linear"
