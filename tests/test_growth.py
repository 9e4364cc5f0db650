"""The benchmark of growth: its exponents, its numbers, and its file of points. It measures nothing here."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts" / "benchmarks"))

import growth


@pytest.mark.parametrize(
    ("sizes", "values", "exponent"),
    [
        ((10, 100, 1000), (3.0, 3.0, 3.0), 0.0),
        ((10, 100, 1000), (2.0, 20.0, 200.0), 1.0),
        ((20, 200, 2000), (1.0, 100.0, 10_000.0), 2.0),
        ((4, 40), (8.0, 4.0), -math.log10(2)),
        ((1, 10, 100), (1.0, 1.0, 100.0), 1.0),  # by least squares, the middle of three points does not count
    ],
)
def test_exponent_of_known_growth(sizes, values, exponent):
    assert growth.fit_exponent(sizes, values) == pytest.approx(exponent, abs=1e-12)


@pytest.mark.parametrize("values", [(0.0, 1.0), (math.nan, 1.0), (-1.0, 1.0)])
def test_exponent_is_unknown_without_logarithms(values):
    assert math.isnan(growth.fit_exponent((1, 10), values))
    assert math.isnan(growth.fit_exponent((1,), (1.0,)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0304, "0.030"),
        (0.617, "0.62"),
        (3.14, "3.1"),
        (42.42, "42"),
        (12_345.6, "12,346"),
        (0.0, "0"),
        (math.nan, "-"),
    ],
)
def test_numbers_have_two_digits(value, text):
    assert growth.format_number(value) == text


def test_points_survive_a_line_that_was_cut_off(tmp_path):
    file = tmp_path / "growth.jsonl"
    growth.append_row(file, {"family": "a", "size": 1, "error": "out of memory"})
    growth.append_row(file, {"family": "a", "size": 1, "seconds": 2.0})
    file.write_text(file.read_text() + json.dumps({"family": "a", "size": 10})[:-3])
    (rows,) = growth.read_points(file).values()
    assert rows == [{"family": "a", "size": 1, "error": "out of memory"}, {"family": "a", "size": 1, "seconds": 2.0}]
    assert growth.read_points(tmp_path / "none") == {}


def test_shortest_times_of_all_rounds_count():
    failed = {"size": 1, "error": "took too long"}
    first, second = (
        {"size": 1, "seconds": seconds, "compile_seconds": 10 - seconds, "bytes": 5.0} for seconds in (2.0, 3.0)
    )
    assert growth.merge_rounds([first, failed, second]) == second | {"seconds": 2.0, "compile_seconds": 7.0}
    assert growth.merge_rounds([failed]) == failed


def test_row_of_the_table_fits_its_points():
    points = [
        {"size": size, "seconds": 1e-6 * size**2, "bytes": 1e6 * size, "compile_seconds": 5.0 + size / 1000}
        for size in (10, 100, 1000)
    ]
    row = growth.format_row("parameters", points)
    assert row == "| parameters | 10, 100, 1,000 | 0.10, 10, 1,000 | 2.00 | 10, 100, 1,000 | 1.00 | 5.0, 6.0 |"
    linear = [{**point, "expected": 1} for point in points]
    assert "| **2.00** |" in growth.format_row("parameters", linear)
    failed = [*points[:2], {"size": 1000, "error": "took too long"}]
    assert growth.format_row("parameters", failed).startswith("| parameters | 10, 100, 1,000 | 0.10, 10 | 2.00 |")
    host = [{**point, "compile_seconds": math.nan} for point in points]
    assert growth.format_row("rows", host).endswith("| - |")
