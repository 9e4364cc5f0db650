"""Lineages of hand-made populations."""

import numpy as np
import pytest

from evorl.errors import OptionError
from evorl.population.lineage import ancestry, branches, choose_axis_scale, member_history

SOURCE = np.array([[0, 0, 2, 3], [1, 1, 1, 3], [0, 1, 2, 3]])  # 1 takes over from 0; then 0 and 2 from 1


def test_founders_are_passed_on_to_those_who_take_over():
    assert ancestry(SOURCE).tolist() == [[0, 1, 2, 3], [0, 0, 2, 3], [0, 0, 0, 3], [0, 0, 0, 3]]


def test_who_is_replaced_in_the_same_generation_still_hands_itself_on():
    swapped = np.array([[1, 0], [1, 1]])
    assert ancestry(swapped).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_branches_go_from_the_parents_value_to_the_childs():
    lines = branches(np.array([[0, 0]]), np.array([[5.0, 7.0], [6.0, 8.0]]))
    assert lines.tolist() == [[[[1, 5], [2, 6]], [[1, 5], [2, 8]]]]


def test_history_joins_the_chunks_of_one_seed_and_of_one_population():
    rows = [
        {"kind": "train", "members": {"source": [[[[0, 0], [1, 1]]], [[[0, 1]] * 2]], "lr": [[[[1, 2], [3, 4]]]] * 2}},
        {"kind": "evaluation", "members": {"return": [[[[9, 9], [9, 9]]]] * 2}},
        {"kind": "train", "members": {"source": [[[[1, 1], [0, 1]]] * 2] * 2, "lr": [[[[5, None], [7, 8]]] * 2] * 2}},
        {"kind": "train"},
    ]  # fmt: skip
    found = member_history(rows, seed=0, population=0)
    assert found["source"].tolist() == [[0, 0], [1, 1], [1, 1]]
    np.testing.assert_array_equal(found["lr"], [[1, 2], [5, np.nan], [5, np.nan]])
    assert member_history(rows, seed=1, population=1)["source"].tolist() == [[0, 1], [0, 1], [0, 1]]
    assert member_history([{"kind": "train"}]) == {}
    for wrong, said in ({"seed": 2}, "seed=2: must be below 2"), ({"population": 2}, "population=2: must be below 2"):
        with pytest.raises(OptionError, match=said):
            member_history(rows, **wrong)


@pytest.mark.parametrize(
    ("values", "label", "scale"),
    [
        ([1e-4, 3e-3], "x", "log"),
        ([-1e-4, -3e-3], "-x", "log"),
        ([0.9, 0.999], "1 - x", "log"),
        ([0.1, 0.3], "x", "linear"),
        ([-5.0, 0.99], "x", "linear"),
        ([np.nan, 2.0], "x", "linear"),
        ([np.nan], "x", "linear"),
    ],
)
def test_axes_are_logarithmic_where_values_span_decades(values, label, scale):
    found = choose_axis_scale("x", np.array([values]))
    assert (found[0], found[2]) == (label, scale)
    shown = {"x": np.array(values), "-x": -np.array(values), "1 - x": 1 - np.array(values)}[label]
    np.testing.assert_array_equal(found[1], [shown])
