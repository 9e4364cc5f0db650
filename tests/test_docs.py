"""Generated tables of the docs are up to date, commands of algorithm pages can be built, and examples do what they say.

`test_doc_blocks.py` runs every Python block of the docs; here their results are checked.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from evorl.training import runs
from evorl.training.configuration import config

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[1] / "scripts" / "docs"))
    import pages

ROOT = pages.ROOT
ALGORITHMS = sorted(
    path for path in (ROOT / "docs" / "algorithms").glob("*.md") if path.read_text().startswith("---\n")
)


def environment():
    """Return the environment variables of a process that imports this evorl, and modules of its own folder first."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(["", str(ROOT)])}


def find_block(page, text):
    """Return the code block of a page that contains a text."""
    (found,) = [one for one in pages.read_blocks(ROOT / "docs" / page) if text in one.code]
    return found


def front_matter(page):
    return yaml.safe_load(page.read_text(encoding="utf-8").split("---\n")[1])


@pytest.mark.program
def test_the_generated_tables_are_up_to_date():
    script = ROOT / "scripts" / "docs" / "tables.py"
    stale = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert stale.returncode == 0, stale.stdout + stale.stderr


def test_every_agent_has_its_hyperparameters_on_a_page_or_none_of_its_own():
    agents = {path.stem for path in (ROOT / "configs" / "agent").glob("*.yaml")}
    shown = {path.stem for path in ALGORITHMS}
    for page in (ROOT / "docs").rglob("*.md"):
        shown |= set(re.findall(r"<!-- hyperparameters of (\w+)", page.read_text(encoding="utf-8")))
    independent = {"ia2c", "iimpala", "idqn", "iddpg", "itd3", "isac", "idiscrete_sac"}  # the agents' own
    without = {"random", "evosax", "search", "minimax", "sfl", "psro_exact", "pipeline_psro", "xfp"}
    assert agents - shown <= independent | without | {"accel", "evolved_levels", "paired", "sep_cma_es"}


def test_every_algorithm_page_has_the_same_sections():
    assert len(ALGORITHMS) >= 30
    for page in ALGORITHMS:
        of = front_matter(page)
        assert set(of) == {"title", "family", "paper", "source", "command", "result", "result_command"}, page.name
        assert (ROOT / of["source"]).exists(), page.name
        assert bool(of["result"]) == bool(of["result_command"]), page.name
        sections = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        expected = [
            "Equations",
            "Command line",
            "Python",
            "Options",
            "Hyperparameters",
            "Results",
            "Differences from the paper",
        ]
        assert [one for one in sections if one in expected] == [one for one in expected if one in sections], page.name
        if page.stem != "evosax":  # which stands for many
            needed = {"Equations", "Command line", "Python", "Results", "Differences from the paper"}
            assert needed <= set(sections), page.name


COMMANDS = {page.stem: front_matter(page)["command"] for page in ALGORITHMS}


@pytest.mark.program
@pytest.mark.parametrize(
    "name", [name for name, command in COMMANDS.items() if command.startswith("python -m evorl.train")]
)
def test_the_command_of_an_algorithm_can_be_built(name):
    workflow, _ = runs.build(config.compose_config(shlex.split(COMMANDS[name])[3:]))
    jax.eval_shape(workflow.init, jax.random.key(0))


@pytest.mark.program
def test_the_environment_of_the_tutorial_is_trained_and_rendered(tmp_path):
    blocks = list(pages.read_blocks(ROOT / "docs" / "tutorials" / "your_environment.md"))
    for block in blocks:
        if block.file:
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.code)
    drawn = find_block("tutorials/your_environment.md", "class DrawnWindyGrid").code
    shown = 'from evorl.envs.suites import to_gymnasium\nshown = to_gymnasium(DrawnWindyGrid(), None, "rgb_array")\n'
    shown += "shown.reset()\nassert shown.render().shape == (560, 800, 3)"
    (tmp_path / "use.py").write_text(f"from windy import WindyGrid\n{drawn}\n{shown}")
    (command,) = [one.code for one in blocks if "env=windy" in one.code]
    tiny = ["agent.workflow.agent.hidden=[8]", "agent.workflow.eval_episodes=4", "evaluations=1", "run_dir=run"]
    train = [*command.replace("50_000", "500").split()[1:], *tiny]
    for arguments in (["use.py"], train):
        ran = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False, env=environment()
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""  # nor a note of the check
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_the_windy_grid_is_that_of_the_book():
    """From row 3 it takes 15 steps, Sutton and Barto 2018, figure in example 6.5."""
    names = {}
    exec(find_block("tutorials/your_environment.md", "class WindyGridState").code, names)
    env, places = names["WindyGrid"](), jnp.stack(jnp.divmod(jnp.arange(70), 10), 1)
    step = jax.vmap(jax.vmap(env.step, (None, None, 0, None)), (None, 0, None, None))
    _, after = jax.jit(step)(
        None, names["WindyGridState"](places, jnp.zeros(70, int)), jnp.arange(4), env.default_params
    )
    successors, over = np.asarray(after.obs @ jnp.array([10, 1])), np.asarray(after.terminated)
    reached = {30}
    for length in range(1, 16):
        assert over[sorted(reached)].any() == (length == 15)
        reached = set(successors[sorted(reached)].flat)


@pytest.mark.program
def test_the_multi_agent_environment_of_the_docs_rewards_by_distance(tmp_path, monkeypatch):
    (tmp_path / "ring_tag.py").write_text(find_block("howto/multi_agent.md", "class RingTag").code)
    monkeypatch.syspath_prepend(tmp_path)
    ring_tag = __import__("ring_tag")
    env, moves = ring_tag.RingTag(), {"hider": jnp.array([2, 0]), "seeker": jnp.array([2])}
    state = env.reset(jax.random.key(0), None)[0].replace(place=jnp.array([0.0, 0.4, 2 * np.pi - 0.4]))
    _, after = env.step(jax.random.key(0), state, moves, None)
    # 0.3 next to 0.6 and -0.6
    np.testing.assert_allclose(after.reward["hider"], [0, 0])
    moves["hider"] = jnp.array([0, 1])
    np.testing.assert_allclose(env.step(jax.random.key(0), state, moves, None)[1].reward["seeker"], [1])


@pytest.mark.program
def test_the_corridor_of_the_docs_learns_from_its_level_buffer(tmp_path):
    text = (ROOT / "docs" / "howto" / "curricula.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m evorl.train (.*env=corridor.*)$", text, re.MULTILINE)
    (tmp_path / "corridor.py").write_text(find_block("howto/curricula.md", "class Corridor").code)
    (tmp_path / "configs" / "env").mkdir(parents=True)
    (tmp_path / "configs" / "env" / "corridor.yaml").write_text("_target_: corridor.Corridor\n")
    train = ["-m", "evorl.train", *command.replace("100_000", "8_000").split(), "evaluations=1", "run_dir=run"]
    ran = subprocess.run(
        [sys.executable, *train], capture_output=True, text=True, cwd=tmp_path, check=False, env=environment()
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert '"gradient_steps": 0' not in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
