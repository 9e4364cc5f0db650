"""A user's own components: those of the tutorials train as printed, and an incomplete one is refused with one line."""

import json
import re
from pathlib import Path

import jax
import pytest

from evorl import load
from evorl.cli import train
from evorl.training.configuration import config
from tests.tiers import program_fixture

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[1] / "scripts" / "docs"))
    import pages

TUTORIALS = [
    pages.ROOT / "docs" / "tutorials" / f"{name}.md"
    for name in ("index", "your_agent", "your_evolver", "your_workflow", "your_meta_workflow")
]
COMMANDS = [
    command
    for page in TUTORIALS
    for command in re.findall(r"^python -m evorl.train (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
TINY = {  # of what has it
    **{"hidden": "[8]", "eval_episodes": 2, "num_envs": 2, "num_steps": 8, "batch_size": 16, "random_steps": 16},
    **{"capacity": 64, "vbn_steps": 16, "min_updates": 1, "max_updates": 2, "max_episode_steps": 5, "size": 5},
    **{"steps_per_generation": 1, "steps": 1},
}

PARTS = """
from dataclasses import dataclass

from evorl import PolicyGradient, number, part


@part
class Reinforce(PolicyGradient):
    def estimate_advantages(self, transitions, ratio, value, next_value):
        return transitions.reward, transitions.reward


@part
class Wide(Reinforce):
    scale: float = number(1.0, 0, 2)


@part
class Unscaled(Reinforce):
    def loss_of_rows(self, batch, log_prob, value, entropy):
        return -self.scale * (log_prob * batch.advantage).mean(), {}


@dataclass(frozen=True)
class HalfAWorkflow:
    env: object

    def init(self, key, numbers=None, env_params=None):
        return numbers

    def step(self, state, key):
        return state, {}


@dataclass(frozen=True)
class HalfAnEnv:
    max_episode_steps: int = 10

    def reset(self, key, params):
        return (), ()
"""
AGENT = """# mine
name: mine
chunk: 1
workflow:
  _target_: evorl.workflows.on_policy.OnPolicy
  num_envs: 2
  num_steps: 4
  batch_size: 8
  agent:
    _target_: lacking.Reinforce
"""
WRONG = {
    "agent=Unscaled": "Unscaled: has no scale, which Unscaled.loss_of_rows reads; declare it as number(",
    "agent=Another": "agent.workflow.agent.scale=3.0: must be between 0 and 2",
    "agent=Unnamed": "unknown class PP0; did you mean PPO",
    "agent=half": "agent.workflow=HalfAWorkflow: has no evaluate, inherit, which Workflow requires",
    "agent=ppo env=half": (
        "env=HalfAnEnv: has no action_space, default_params, fresh_reset, observation_space, step, which Env requires"
    ),
    "agent=ppo agent.workflow.agent._target_=evorl.agents.random.Random": "unknown option agent.workflow.agent.",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text(PARTS)
    for name in ("agent", "env"):
        (tmp_path / "configs" / name).mkdir(parents=True)
    files = {
        "Unscaled": AGENT.replace("lacking.Reinforce\n", "lacking.Unscaled\n"),
        "Another": AGENT.replace("lacking.Reinforce\n", "lacking.Wide\n    scale: 3.0\n"),
        "Unnamed": AGENT.replace("lacking.Reinforce\n", "PP0\n"),
    }
    for name, text in files.items():
        (tmp_path / "configs" / "agent" / f"{name}.yaml").write_text(text)
    half = AGENT[: AGENT.index("  _target_")] + "  _target_: lacking.HalfAWorkflow\n"
    (tmp_path / "configs" / "agent" / "half.yaml").write_text(half)
    (tmp_path / "configs" / "env" / "half.yaml").write_text("# half\n_target_: lacking.HalfAnEnv\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", WRONG)
def test_what_is_lacking_is_named_before_there_is_a_folder(command, folder, capsys):
    arguments = command.split()
    if "env=half" not in arguments:
        arguments += ["env=cartpole"]
    with pytest.raises(SystemExit) as ended:
        train.main([*arguments, "run_dir=run"])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith(f"error: {WRONG[command]}"), said
    assert said.count("\n") == 1
    assert not (folder / "run").exists()


@program_fixture(scope="module")
def own(tmp_path_factory):
    """An empty folder into which the files of the tutorials were written."""
    folder = tmp_path_factory.mktemp("own")
    for made in re.search(r"^mkdir -p (.*)$", TUTORIALS[0].read_text(encoding="utf-8"), re.MULTILINE)[1].split():
        (folder / made).mkdir(parents=True)
    for page in TUTORIALS:
        for block in pages.read_blocks(page):
            if block.file:
                (folder / block.file).write_text(block.code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder


def slow(command):
    """A command of which the tests train another of its kind."""
    others = (
        "agent=pbt agent/inner=ppo",
        "agent=cemrl",
        "agent/inner=average",
        "keep_best agent/inner",
        "pbt agent/inner=soft_q",
    )
    return any(other in command for other in others)


@pytest.mark.parametrize("command", [pytest.param(x, marks=[pytest.mark.program] * slow(x)) for x in COMMANDS])
def test_what_the_page_shows_trains_as_printed(command, own, capsys):
    arguments = command.split()
    options = [
        name
        for name, _ in config.iterate_paths(config.compose_config(arguments))
        if name.startswith(("agent.", "env."))
    ]
    tiny = [f"{name}={TINY[end]}" for name in options if (end := name.rpartition(".")[2]) in TINY]
    run = own / f"run-{COMMANDS.index(command)}"
    train.main([*arguments, *tiny, "env_steps=null", "iterations=2", "evaluations=1", f"run_dir={run.name}"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["kind"] == "evaluation"
    assert rows[-1]["env_steps"] > 0
    assert "saved in" in capsys.readouterr().out
    if "keep_best" in command:
        policy = load(run, trust=["keep_best", "reach", "soft_q"])
        policy(policy.env.reset(jax.random.key(0), policy.env_params)[1])
