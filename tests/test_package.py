"""What the package gives a notebook, and a type checker."""

import ast
import contextlib
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import evorl
from evorl import lazy, package
from evorl.training.configuration.discovery import GROUPS, find_choices
from evorl.training.configuration.targets import list_public_classes

ROOT = Path(__file__).parents[1]
TARGETS = sorted(
    {
        target
        for group in (*GROUPS, "sampler", "wrapper")
        for choice in find_choices(group).values()
        for target in re.findall(r"_target_: (\S+)", choice.text)
    }
)


def test_every_part_that_a_configuration_names_is_public():
    assert len(TARGETS) > 100
    assert set(TARGETS) - set(list_public_classes()) == {"hydra.utils.get_class"}


def test_every_public_name_is_there_and_typed():
    for name in lazy.list_packages():
        module = importlib.import_module(name)
        assert set(module.__all__) == set(dir(module))
        assert all(hasattr(module, one) for one in module.__all__)
    assert {"CMAES", "envs", "number", "fit", "load"} <= set(evorl.__all__)
    assert evorl.envs.arcade.CartPole is evorl.CartPole
    assert (Path(evorl.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="module 'evorl' has no attribute 'PPPO'"):
        evorl.PPPO  # noqa: B018


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_and_what_an_extra_needs_are_those_of_the_metadata(monkeypatch):
    """Compare what is installed, and the source tree where nothing is."""
    assert project()["name"] == package.DISTRIBUTION
    for installed in (True, False):
        package._read_metadata.cache_clear()
        if not installed:
            monkeypatch.setattr(package, "DISTRIBUTION", "evorl-none")
        assert evorl.__version__ == package.versions()["evorl"] == project()["version"]
        assert package.install_command("ray") == 'pip install "ray>=2.60"'
        assert package.install_command("pgx") == 'pip install "pgx>=2.6" "svgwrite>=1.4"'
        assert package.install_command("envpool") == 'pip install "envpool>=1.2"'
        assert package.install_command("open_spiel").replace("-", "_") == 'pip install "open_spiel>=1.6"'
        assert package.install_command("mujoco") == 'pip install "gymnasium[mujoco]>=1.3"'
    package._read_metadata.cache_clear()


def test_every_extra_that_a_hint_names_is_one():
    extras = project()["optional-dependencies"]
    calls = [
        node
        for path in Path(evorl.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "package.install_command"
    ]
    assert {one.args[0].value for one in calls if isinstance(one.args[0], ast.Constant)} <= set(extras)
    assert len(calls) >= 7


def test_the_other_projects_of_this_name_are_named_where_it_helps_alone():
    folders = [ROOT / name for name in ("evorl", "configs", "docs", "notebooks", "scripts", "tests", ".ci")]
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*"))]
    other = b"evorl" + b"-jax"
    naming = {path.relative_to(ROOT).as_posix() for path in files if path.is_file() and other in path.read_bytes()}
    pages = {"docs/start/installation.md", "docs/coming_from/evorl_emi.md", "docs/changelog.md"}  # the last is a copy
    comparison = {"docs/comparison.md", "docs/rows/comparison.jsonl", "scripts/comparison/jobs.py"}
    comparison |= {"scripts/comparison/sides/workflows_evorl_emi.py"}
    allowed = {"README.md", "CHANGELOG.md", "evorl/package.py"} | pages | comparison
    assert {name for name in naming if not name.endswith(".pyc")} <= allowed


COMMANDS = (
    "train",
    "play",
    "export",
    "sanity",
    "curve",
    "report",
    "lineage",
    "league",
    "sweep",
    "autotune",
    "distribute",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_versions(name, capsys):
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"evorl.{name}").main(["--version"])
    assert end.value.code == 0
    assert re.fullmatch(r"evorl \S+, jax \S+, brax \S+, python 3\.\d+\.\S+\n", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["train", "sweep", "autotune", "distribute"])
def test_a_bare_command_prints_its_usage_and_starts_nothing(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    importlib.import_module(f"evorl.{name}").main([])
    assert capsys.readouterr().out.startswith(f"usage: python -m evorl.{name}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--help"], 0), (["trian"], 2)])
def test_evorl_lists_its_commands(words, code, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["evorl", *words])
    with pytest.raises(SystemExit) if code else contextlib.nullcontext() as end:
        importlib.import_module("evorl.__main__").main()
    assert not code or end.value.code == code
    listed = re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.program
def test_evorl_alone_imports_nothing_heavy():
    code = "import sys, evorl; sys.exit(any(name in sys.modules for name in ('jax', 'numpy', 'hydra', 'brax')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


HEAVY = ("scipy", "matplotlib", "pandas", "seaborn", "brax", "mujoco", "torch", "wandb", "ray")


@pytest.mark.program
@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("--cfg", "job"), ("jax", "flax", "optax", "orbax", "gymnax", *HEAVY)),
        (("iterations=1", "hidden=[8]", "num_steps=8", "batch_size=32", "num_epochs=1"), HEAVY),
    ],
    ids=["configuration", "training"],
)
def test_a_command_imports_only_what_it_uses(words, unused, tmp_path):
    """The second time: the first one fills caches."""
    code = "import sys, evorl.cli.train as t; t.main(sys.argv[1:]); print(*(n for n in sys.modules if '.' not in n))"
    for run in ("one", "two"):
        command = [sys.executable, "-c", code, "agent=ppo", "env=cartpole", f"run_dir={run}", *words]
        found = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert set(found.stdout.splitlines()[-1].split()) & set(unused) == set()


def test_files_for_a_forge_agree_with_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    shards = int(re.search(r"^shards=(\d+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)[1])
    assert jobs["programs"]["strategy"]["matrix"]["shard"] == list(range(1, shards + 1))
    said = " ".join(step["run"] for step in jobs["programs"]["steps"] if "run" in step)
    assert f"/{shards}" in said
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert jobs["quick"]["strategy"]["matrix"]["python"] == versions


FLOORS = (  # from the ground up
    "errors lazy deferred_imports machine mesh package part_docs stats metrics numpy_policy",
    "keys names",
    "spaces",
    "tree types",
    "priors",
    "schedules",
    "parts",
    "bounds replay",
    "vector_env",
    "returns normalize networks",
    "n_step agents ec envs problems",
    "population",
    "plots",
    "workflows",
    "leagues ued",
    "training command",
    "distributed",
    "sweeps",
    "reports",
    "cli",
    "train play export sanity curve report lineage league sweep autotune distribute __main__",
)


def test_no_import_leads_up_or_across_a_floor():
    """Within a folder they may lead anywhere."""
    floor = {name: i for i, names in enumerate(FLOORS) for name in names.split()}
    root = Path(evorl.__file__).parent
    for path in root.rglob("*.py"):
        own = path.relative_to(root).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if own != "__init__" and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evorl"):
                names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
                for name in names:
                    assert name == own or floor[name] < floor[own], f"{path.relative_to(root)} imports {name}"


def test_no_modules_import_each_other_in_a_circle():
    """Imports within functions count too."""
    root = Path(evorl.__file__).parent
    paths = {".".join(["evorl", *path.relative_to(root).with_suffix("").parts]): path for path in root.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    public = {name: lazy.read_public_names(name) for name in lazy.list_packages()}
    graph = {}
    for module, path in modules.items():
        froms = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
        ]
        names = [(node.module or "", alias.name) for node in froms for alias in node.names]
        found = {
            f"{of}.{name}" if f"{of}.{name}" in modules else public.get(of, {}).get(name, of) for of, name in names
        }
        graph[module] = (found & modules.keys()) - {module}
    graphlib.TopologicalSorter(graph).prepare()  # which raises


@pytest.mark.program
def test_every_public_function_and_method_is_documented_here_or_by_its_protocol_or_base():
    root = Path(evorl.__file__).parent
    classes, functions = [], []
    for path in root.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        functions += [(path.name, node) for node in body if isinstance(node, ast.FunctionDef)]
        classes += [node for node in body if isinstance(node, ast.ClassDef)]
    by_protocol, named = set(), lambda one: {base.id for base in one.bases if isinstance(base, ast.Name)}
    parents = set().union(*map(named, classes))
    for one in classes:
        methods = [(one.name, node) for node in one.body if isinstance(node, ast.FunctionDef)]
        if "Protocol" in named(one) or one.name in parents:
            attributes = [node.target.id for node in one.body if isinstance(node, ast.AnnAssign)]
            by_protocol |= {node.name for _, node in methods if ast.get_docstring(node)}
            by_protocol |= {name for name in attributes if f"  {name}: " in (ast.get_docstring(one) or "")}
        functions += [] if one.name.startswith("_") else methods
    missing = [
        f"{where}: {node.name}"
        for where, node in functions
        if not (node.name.startswith("_") or node.name in by_protocol or ast.get_docstring(node))
    ]
    assert missing == []
