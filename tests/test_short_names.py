"""Short names of options stand for the one option that ends so, and nothing else is guessed."""

from pathlib import Path

import pytest

from evorl.cli import train
from evorl.errors import OptionError
from evorl.names import find_by_ending
from evorl.sweeps.space_options import find_option, parse_search
from evorl.training.configuration import config, short_names
from tests.tiers import program_fixture

OPTIONS = ["seed", "agent.chunk", "chunk", "agent.workflow.agent.hidden", "agent.workflow.evolver.std", "env.lr_std"]


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("hidden", "agent.workflow.agent.hidden"),
        ("agent.hidden", "agent.workflow.agent.hidden"),
        ("std", "agent.workflow.evolver.std"),  # of whole segments: not env.lr_std
        ("chunk", "chunk"),  # what is there by this very name
        ("dden", None),
        ("workflow", None),
    ],
)
def test_an_ending_of_whole_segments_is_a_name(short, full):
    assert find_by_ending(short, OPTIONS) == full


def test_what_may_be_several_is_not_guessed():
    with pytest.raises(
        OptionError, match=r"activation: is ambiguous, agent\.workflow\.agent\.activation or agent.*encoder"
    ):
        config.compose_config(["agent=ppo", "env=cartpole", "activation=relu"])
    cfg = config.compose_config(["agent=ppo", "env=cartpole", "encoder.activation=gelu"])
    assert cfg.agent.workflow.agent.encoder.activation == "gelu"
    assert cfg.agent.workflow.agent.activation == "tanh"  # its default


def test_short_names_set_what_long_ones_do_and_are_told_once(capsys, monkeypatch):
    monkeypatch.setattr(short_names, "_told", set())
    given = ["agent=ppo", "env=cartpole"]
    short = [*given, "learning_rate=1e-3", "num_envs=128", "hidden=[64,64]"]
    long = [
        "agent.workflow.agent.learning_rate=1e-3",
        "agent.workflow.num_envs=128",
        "agent.workflow.agent.hidden=[64,64]",
    ]
    cfg, expanded = config.compose_expanded(short)
    assert expanded == [*given, *long]
    assert cfg == config.compose_config([*given, *long])
    config.compose_config(short)
    assert capsys.readouterr().err.splitlines() == [
        "learning_rate: agent.workflow.agent.learning_rate",
        "num_envs: agent.workflow.num_envs",
        "hidden: agent.workflow.agent.hidden",
    ]


def test_a_number_in_place_of_a_schedule_is_told_once(capsys, monkeypatch):
    monkeypatch.setattr(short_names, "_told", set())
    given = ["agent=puffer", "env=cartpole", "agent.workflow.agent.learning_rate=1e-3", "env_steps=500"]
    for _ in range(2):
        config.compose_config(given)
    assert capsys.readouterr().err.splitlines() == [
        "agent.workflow.agent.learning_rate=1e-3: replaces Cosine(start=0.015, end=0, over=500)"
    ]
    config.compose_config(["agent=ppo", "env=cartpole", "agent.workflow.agent.learning_rate=1e-3"])
    assert not capsys.readouterr().err


def test_a_number_in_place_of_a_schedule_of_ones_own_is_told(capsys, monkeypatch, tmp_path):
    (tmp_path / "configs" / "agent").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("halving.py").write_text("""
from flax import struct
from evorl.schedules import Schedule

@struct.dataclass
class Halving(Schedule):
    start: float
    every: float
    ends = ("start",)

    def value(self, env_steps):
        return self.start * 0.5 ** (env_steps / self.every)
""")
    Path("configs/agent/mine.yaml").write_text("""
defaults: [ppo]
workflow:
  agent:
    learning_rate: {_target_: halving.Halving, start: 1e-3, every: 1000}
""")
    config.compose_config(["agent=mine", "env=cartpole", "learning_rate=1e-4"])
    assert "learning_rate=1e-4: replaces Halving(start=0.001, every=1000)" in capsys.readouterr().err


@pytest.mark.parametrize("command", [
    ("agent=pbt agent/inner=td3 actor_lr=1e-3", "agent.inner.workflow.agent.actor_lr=1e-3"),
    ("agent=cemrl evolver.shrink=false", "agent.workflow.evolver.shrink=false"),
    ("agent=pbt size=8", "agent.workflow.population.size=8"),
])  # fmt: skip
def test_parts_within_parts_are_found(command):
    short, full = command
    assert config.compose_expanded([*short.split(), "env=cartpole"])[1][-2] == full


@pytest.mark.parametrize(("name", "agent", "ours"), [
    ("total_timesteps", "ppo", "env_steps"),
    ("gamma", "sac", "discount"),
    ("lr", "ppo", "learning_rate"),
    ("lr", "sac", "actor_lr or critic_lr"),
    ("learning_rate", "td3", "actor_lr or critic_lr"),
    ("n_envs", "dqn", "num_envs"),
])  # fmt: skip
def test_names_of_other_libraries_are_told_by_ours(name, agent, ours):
    env = "hopper" if agent in ("sac", "td3") else "cartpole"
    with pytest.raises(OptionError, match=f"^unknown option {name}; in evorl it is {ours}$"):
        config.compose_config([f"agent={agent}", f"env={env}", f"{name}=1"])


def test_every_name_of_another_library_has_one_of_ours():
    known = set()
    for agent in ("ppo", "td3", "sac", "openes", "dqn"):
        cfg = config.compose_config([f"agent={agent}", "env=cartpole" if agent == "dqn" else "env=hopper"])
        known |= {name.rpartition(".")[2] for name, _ in config.iterate_paths(cfg)}
    wanted = {one for ours in short_names.PEER_NAMES.values() for one in ours}
    assert wanted <= known


def test_a_sweep_finds_what_it_searches_by_the_same_names():
    data = config.to_plain_data(config.compose_config(["agent=cemrl", "env=hopper"]))
    assert find_option(data, "agent.actor_lr") == "agent.workflow.agent.actor_lr"
    assert find_option(data, "actor_lr") == "agent.workflow.agent.actor_lr"
    assert find_option(data, "population_size") == "agent.workflow.evolver.population_size"
    assert find_option(data, "actor_l") is None
    with pytest.raises(OptionError, match=r"unknown parameter space\.actor_l;"):
        parse_search(["agent=cemrl", "env=hopper"], ["space.actor_l=0.1"])
    data = config.to_plain_data(config.compose_config(["agent=puffer", "env=hopper"]))
    assert find_option(data, "learning_rate.over") == "agent.workflow.agent.learning_rate.over"
    with pytest.raises(OptionError, match=r"is not a number; .*; space\.learning_rate\.start is one"):
        parse_search(["agent=puffer", "env=hopper"], ["space.learning_rate=${uniform:0,1}"])


@program_fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    sizes = ["num_envs=2", "num_steps=4", "batch_size=8", "hidden=[4]", "eval_episodes=2", "iterations=2"]
    train.main(["agent=ppo", "env=cartpole", "clip=0.3", *sizes, "tensorboard=false", f"run_dir={folder}"])
    return folder


@pytest.mark.program
def test_a_training_takes_them(run):
    text = (run / "config.yaml").read_text()
    assert "clip: 0.3" in text
    assert "num_envs: 2" in text
