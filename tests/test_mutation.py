"""The mutation tester: its operators on short sources, its sample of sites, and a run on a package of three files."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts" / "trust"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(SCRIPTS))
    import mutation_sites

DERIVED = "def f(params):\n    x = g(params)\n    return x"
CASES = [
    ("sign", "x = a + (b)", ["x = a - (b)"]),
    ("sign", "x -= 1", ["x += 1"]),
    ("sign", "y = -x", ["y = +x"]),
    ("sign", "y = x[-1].sum(axis=-1).reshape(-1, 2) + ['a']", []),
    ("comparison", "x = 0 <= a < 1", ["x = 0 > a < 1", "x = 0 <= a >= 1"]),
    ("comparison", "x = a == b, a not in b", ["x = a != b, a not in b", "x = a == b, a in b"]),
    ("index", "y = x[0], x[2], x[-1]", ["y = x[1], x[2], x[-1]", "y = x[0], x[1], x[-1]", "y = x[0], x[2], x[-2]"]),
    ("index", "y = x[i, :n], x[name]", ["y = x[i - 1, :n], x[name]", "y = x[i, :n - 1], x[name]"]),
    ("index", "y = jnp.take_along_axis(x, i, axis=1)[:, 0]", []),
    ("mask", "x = jnp.where(m, a, b + 1)", ["x = a"]),
    ("mask", "x = a * mask, ~over & b", ["x = a, ~over & b", "x = a * mask, b"]),
    ("stop_gradient", "x = jax.lax.stop_gradient(a + b) * 2", ["x = (a + b) * 2"]),
    ("stop_gradient", "def f(x):\n    return x, jax.lax.stop_gradient(x)", []),
    ("stop_gradient", "def f(params, state):\n    x = g(state)\n    return stop_gradient(x)", []),
    ("stop_gradient", "def f(params):\n    x = g(params)\n    return stop_gradient(x)", [DERIVED]),
    ("termination", "x = t.terminated", ["x = t.truncated"]),
    ("termination", "def f(terminated): return terminated", []),
    ("termination", "def f(terminated, *truncated): truncated", ["def f(terminated, *truncated): terminated"]),
    ("termination", "x = S(terminated=a, truncated=b)", ["x = S(truncated=a, terminated=b)"]),
    ("key", "a, b = jax.random.split(k)  # two", ["a, b = jax.random.split(k); b = a  # two"]),
    ("key", "x = f(jax.random.split(k, n))", ["x = f(jax.numpy.broadcast_to(k, n))"]),
    ("key", "x = jax.random.fold_in(k, 1)", ["x = k"]),
    ("axis", "y = x.sum(0), f(axis=-1)", ["y = x.sum(1), f(axis=-1)", "y = x.sum(0), f(axis=-2)"]),
    ("axis", "y = jax.vmap(f, (0, None))", ["y = jax.vmap(f, (None, None))", "y = jax.vmap(f, (0, 0))"]),
    ("min_max", "x = jnp.minimum(a, max(b))", ["x = jnp.maximum(a, max(b))", "x = jnp.minimum(a, min(b))"]),
    ("division", "x = a * b / 'é'", ["x = a / b / 'é'"]),
]  # fmt: skip

QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_cov.plugin"}  # the others start slowly

NOT_CODE = '''"""a - b"""
def f(x: A[0] = f"{a - b}") -> A[-1]:
    raise ValueError(a - b)
def g() -> str:
    return a - b
class A(Protocol):
    x = a - b
if TYPE_CHECKING:
    x = a - b
print(a - b)
'''


@pytest.mark.parametrize(("operator", "line", "expected"), CASES)
def test_an_operator_changes_a_line(operator, line, expected):
    found = [site for site in mutation_sites.find_sites("x.py", line) if site.operator == operator]
    assert [mutation_sites.mutate(line, site) for site in found] == expected


def test_no_site_lies_in_text_types_or_errors():
    assert mutation_sites.find_sites("x.py", NOT_CODE) == []


def test_a_site_knows_where_a_test_must_have_run():
    text = "X = a + b\ndef f(y=a + b):\n    if (\n        y + 1\n    ):\n        return y\n    return 2\n"
    top, header, inside = (site.places for site in mutation_sites.find_sites("x.py", text))
    assert top == (((3, 7),),)
    assert header == (((3, 7),), ((3, 7),))
    assert inside == (((3, 5),), ((3, 7),), ((3, 7),))


def test_sites_are_drawn_from_every_folder_and_evenly_over_operators():
    many = "\n".join(f"x = a + b{i} * c{i}" for i in range(50))
    found = [site for file in ("p/a.py", "p/q/b.py") for site in mutation_sites.find_sites(file, many)]
    found += mutation_sites.find_sites("p/r/c.py", "x = a < b")
    drawn = mutation_sites.draw_sites(found, 21, seed=3)
    assert drawn == mutation_sites.draw_sites(found[::-1], 21, seed=3) != mutation_sites.draw_sites(found, 21, seed=4)
    assert Counter(site.folder for site in drawn) == {"p": 10, "p/q": 10, "p/r": 1}
    assert Counter(site.operator for site in drawn) == {"sign": 10, "division": 10, "comparison": 1}
    assert len({site.name for site in drawn}) == 21
    assert len(mutation_sites.draw_sites(found, 1000, seed=3)) == len(found)


@pytest.mark.program
def test_mutants_of_a_small_package_are_caught_survive_or_are_not_covered(tmp_path):
    pytest.importorskip("pytest_cov")
    files = {
        "toy/__init__.py": "",
        "toy/a.py": "def add(a, b):\n    return a + b\n",
        "toy/b.py": "def less(a, b):\n    return a < b\n",
        "toy/c.py": "def product(a, b):\n    return a * b\n",
        "tests/test_a.py": "from toy.a import add\ndef test_add():\n    assert add(1, 2) == 3\n",
        "tests/test_b.py": "from toy.b import less\ndef test_less():\n    less(1, 2)\n",
    }
    root, data, out = tmp_path / "root", tmp_path / "data", tmp_path / "out.jsonl"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    def script(*arguments):
        command = [sys.executable, str(SCRIPTS / "mutants.py"), *map(str, arguments), "--package", "toy"]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | QUICK).stdout

    script("record", "--root", root, "--data", data)
    table = script("run", "--data", data, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["status"], row["by"]) for row in rows] == [
        ("caught", "tests/test_a.py::test_add"),
        ("SURVIVED", ""),
        ("not covered", ""),
    ]
    assert "| toy | 1 | 1 | 1 | 0 |" in table
    assert script("run", "--data", data, "--out", out) == table
    assert len(out.read_text().splitlines()) == 3
    assert {name: (root / name).read_text() for name in files} == files
