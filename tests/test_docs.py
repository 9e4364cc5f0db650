"""What is generated in docs is up to date, and what they show runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.training import runs
from evorl.training.configuration import config

ROOT = Path(__file__).parents[1]


def environment():
    """That of a process which finds this evorl, and its own folder first."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(["", str(ROOT)])}


@pytest.mark.program
def test_the_tables_of_numbers_are_those_of_the_parts():
    script = ROOT / "scripts" / "docs" / "tables.py"
    stale = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert stale.returncode == 0, stale.stdout + stale.stderr


def test_every_agent_but_the_random_one_has_a_page():
    agents = {path.stem for path in (ROOT / "configs" / "agent").glob("*.yaml")}
    pages = {path.stem for path in (ROOT / "docs" / "agents").glob("*.md")}
    for page in (ROOT / "docs").rglob("*.md"):
        pages |= set(re.findall(r"<!-- hyperparameters of (\w+)", page.read_text()))
    # no numbers of their own
    parts_alone = {"accel", "evolved_levels", "learnable", "minimax", "paired", "search", "sep_cma_es"}
    parts_alone |= {
        "psro_exact",
        "pipeline_psro",
        "xfp",
        "ia2c",
        "iimpala",
        "idqn",
        "iddpg",
        "itd3",
        "isac",
        "idiscrete_sac",
    }
    assert agents - pages == {"evosax", "random"} | parts_alone


@pytest.mark.program
def test_the_environment_of_the_docs_is_checked_and_trained(tmp_path):
    text = (ROOT / "docs" / "environments.md").read_text()
    blocks = {kind: re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "yaml", "bash")}
    definition, *uses = blocks["python"]
    (tmp_path / "windy.py").write_text(definition)
    tiny = ["agent.workflow.agent.hidden=[8]", "agent.workflow.eval_episodes=4", "evaluations=1", "run_dir=run"]
    uses.append('from evorl.envs.suites import to_gymnasium\nshown = to_gymnasium(DrawnWindyGrid(), None, "rgb_array")')
    uses.append("shown.reset()\nassert shown.render().shape == (560, 800, 3)")
    (tmp_path / "use.py").write_text("from windy import WindyGrid\n" + "\n".join(uses).replace("50_000", "500"))
    (tmp_path / "configs" / "env").mkdir(parents=True)
    (tmp_path / "configs" / "env" / "windy.yaml").write_text(blocks["yaml"][0])
    train = blocks["bash"][0].replace("50_000", "500").split()
    for command in ([sys.executable, "use.py"], [sys.executable, *train[1:], *tiny]):
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=environment())
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""  # nor a note of the check
    assert (tmp_path / "run" / "config.yaml").is_file()


@pytest.mark.program
def test_the_game_of_the_docs_is_checked_and_played_by_a_team(tmp_path, monkeypatch, capsys):
    definition, checked, team = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "games.md").read_text(), re.DOTALL)
    assert len(definition.splitlines()) <= 45
    (tmp_path / "ring_tag.py").write_text(definition)
    monkeypatch.syspath_prepend(tmp_path)
    names = {}
    exec(checked, names)
    exec(team, names)
    assert capsys.readouterr() == ("", "")  # no note of the check
    workflow = names["workflow"]
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    assert {"return/hider", "return/seeker"} <= set(jax.eval_shape(workflow.step, state, jax.random.key(0))[1])
    env, moves = names["RingTag"](), {"hider": jnp.array([2, 0]), "seeker": jnp.array([2])}
    state = names["env"].reset(jax.random.key(0), None)[0].replace(place=jnp.array([0.0, 0.4, 2 * np.pi - 0.4]))
    _, after = env.step(jax.random.key(0), state, moves, None)
    # 0.3 beside 0.6 and -0.6
    np.testing.assert_allclose(after.reward["hider"], [0, 0])
    moves["hider"] = jnp.array([0, 1])
    np.testing.assert_allclose(env.step(jax.random.key(0), state, moves, None)[1].reward["seeker"], [1])


def test_the_windy_grid_is_that_of_the_book():
    """From row 3 it takes 15 steps, Sutton and Barto 2018, figure in example 6.5."""
    names = {}
    exec(re.search(r"```python\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(), re.DOTALL)[1], names)
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


SHOWN = [
    command
    for page in ("arcade", "memory", "curricula", "objectives", "diversity")
    for command in re.findall(
        r"^python -m evorl.train ([^#\n]*)",
        (ROOT / "docs" / f"{page}.md").read_text().replace("\\\n", ""),
        re.MULTILINE,
    )
    if "env=corridor" not in command  # which is tried below
]


@pytest.mark.program
@pytest.mark.parametrize("command", SHOWN)
def test_what_these_pages_show_can_be_built(command):
    workflow, _ = runs.build(config.compose_config(command.split()))
    jax.eval_shape(workflow.init, jax.random.key(0))


def test_what_the_page_on_diversity_shows_runs():
    names = {}
    exec(re.search(r"```python\n(.*?)```", (ROOT / "docs" / "diversity.md").read_text(), re.DOTALL)[1], names)
    workflow = names["workflow"]
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    assert state.evolver.elites.fitness.shape == (400,)


@pytest.mark.program
def test_what_the_page_of_the_maze_shows_runs():
    text = (ROOT / "docs" / "maze.md").read_text()
    names = {"key": jax.random.key(0)}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert names["harder"].grid.shape == (3, 4)
    assert int(names["level"].grid.sum()) == 1
    assert names["editor"].max_episode_steps == 6


@pytest.mark.program
def test_what_the_page_of_curricula_shows_can_be_built():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "curricula.md").read_text(), re.DOTALL)
    shown = [block for block in blocks if "workflow = " in block]
    assert len(shown) == 2
    for block in shown:
        names = {}
        exec(block, names)
        workflow = names["workflow"]
        jax.eval_shape(workflow.step, jax.eval_shape(workflow.init, jax.random.key(0)), jax.random.key(0))


@pytest.mark.program
def test_what_the_page_of_objectives_shows_runs():
    search, problem = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "objectives.md").read_text(), re.DOTALL)
    names = {}
    exec(search.replace("200", "8").replace("=250", "=2").replace("chunk=50", "chunk=1"), names)
    assert names["training"].progress.totals["env_steps"] == [16, 16]
    exec(problem, names)
    workflow = names["Search"](names["Valley"](), names["NSGA2"](8))
    state = workflow.init(jax.random.key(0))
    assert workflow.step(state, jax.random.key(1))[0].evolver.fitness.shape == (8, 2)


@pytest.mark.program
def test_the_corridor_of_the_docs_is_checked_learns_from_its_replays_and_has_a_score_of_its_own(tmp_path):
    text = (ROOT / "docs" / "curricula.md").read_text()
    *_, definition, use, score = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"^python -m evorl.train (.*env=corridor.*)$", text, re.MULTILINE)
    (tmp_path / "corridor.py").write_text(definition)
    use = "from corridor import Corridor\n" + use + "\nassert training.rows[-1]['gradient_steps'] > 0\n" + score
    (tmp_path / "use.py").write_text(use.replace("100_000", "8_000").replace("20_000", "2_000"))
    (tmp_path / "configs" / "env").mkdir(parents=True)
    (tmp_path / "configs" / "env" / "corridor.yaml").write_text("_target_: corridor.Corridor\n")
    train = ["-m", "evorl.train", *command.replace("100_000", "2_000").split(), "evaluations=1", "run_dir=run"]
    for arguments in (["use.py"], train):
        ran = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False, env=environment()
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""
