import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf
from typing_extensions import Protocol, runtime_checkable

from evorl.agents import SAC, TD3
from evorl.cli.train import list_suite_envs
from evorl.ec import CEM
from evorl.ec.evosax import Evosax
from evorl.ec.variation import ERLMutation
from evorl.envs.actions import StickyAction
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import FrameStack
from evorl.errors import OptionError
from evorl.parts import number, read_numbers
from evorl.population import Pairs, Swarm, Truncation
from evorl.population.search import PriorSpace
from evorl.priors import Fixed, LogUniform, Uniform
from evorl.training import runs
from evorl.training.configuration import config, dataclass_nodes, discovery, parts, saved_defaults, trust_check
from evorl.training.records.json_cache import JsonCache
from evorl.types import Prior
from evorl.workflows import (
    CEMRL,
    ERL,
    PBT,
    MetaES,
    SharedReplay,
    Vmapped,
)


def built(*overrides):
    return runs.build(config.compose_config(overrides))


def test_defaults_are_those_of_the_dataclasses_and_of_the_paper():
    workflow, budget = built("agent=cemrl", "env=fast")
    assert isinstance(workflow, CEMRL)
    assert read_numbers(workflow) == read_numbers(CEMRL(workflow.env, TD3(), CEM()))
    assert (workflow.evolver.population_size, workflow.num_learners, workflow.evolver.num_parents) == (10, 5, 5)
    assert (workflow.min_updates, workflow.max_updates, workflow.batch_size) == (64, 1024, 256)
    assert (workflow.random_steps, workflow.fitness_episodes, workflow.explore) == (25_600, 1, False)
    assert (workflow.agent.hidden, workflow.agent.layer_norm) == ((256, 256), True)
    assert (workflow.agent.discount, workflow.agent.tau, workflow.agent.actor_lr) == (0.99, 0.005, 3e-4)
    assert budget.env_steps == 1_000_000


def test_defaults_are_read_from_the_cache_only_for_the_same_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, own = "evorl.agents.td3.TD3", dataclass_nodes.make_default_node(TD3)
    assert own["hidden"] == [256, 256]
    saved = JsonCache(saved_defaults.DEFAULTS_FILE)
    sources = ["now", 0.0]
    monkeypatch.setattr(saved_defaults, "_fingerprint_sources", lambda: tuple(sources))
    assert saved_defaults.read_default_node(target) == own
    saved.put(target, {"sources": "now", "node": own | {"tau": 0.5}})
    assert saved_defaults.read_default_node(target) == own | {"tau": 0.5}
    sources[:] = "a file is newer than this process", time.time()
    assert saved_defaults.read_default_node(target) == own
    assert saved.get(target)["sources"] == "now"
    sources[:] = "an older file", 0.0
    assert saved_defaults.read_default_node(target) == own
    assert saved.get(target) == {"sources": "an older file", "node": own}


def test_the_sources_of_defaults_are_older_than_the_process():
    fingerprint, newest = saved_defaults._fingerprint_sources()
    assert re.fullmatch("[0-9a-f]{64}", fingerprint)
    assert Path(saved_defaults.__file__).stat().st_mtime <= newest


def test_experiments_are_the_papers_settings():
    cfg = config.compose_config(["experiment=paper/cemrl_ant"])
    assert (cfg.agent.name, cfg.env.name, cfg.num_seeds, cfg.episodes, cfg.env_steps) == (
        "cemrl",
        "ant",
        8,
        20_000,
        None,
    )
    workflow = cfg.agent.workflow
    assert (workflow.min_updates, workflow.max_updates, workflow.warmup_generations) == (1024, 1024, 10)
    assert workflow.evolver.shrink is False
    assert config.compose_config(["experiment=paper/cemrl_hopper"]).agent.workflow.max_updates == 4096


def ends(pbt):
    return {name: pytest.approx(prior.bounds) for name, prior in pbt.search_space.priors.items()}


@pytest.mark.program
def test_pbt_of_the_paper_is_that_of_its_tables():
    """arXiv:2501.15129, tables 5 and 6, which give the entropy's weight the opposite sign."""
    table5 = {"policy_coef": (0.01, 10), "value_coef": (0.01, 10), "entropy_coef": (1e-5, 1)}
    table5 |= {"discount": (0.86466, 0.99999), "gae_lambda": (0.63212, 0.99999), "clip": (0.01, 0.5)}
    for name, generations in (("ant", 500), ("hopper", 500), ("halfcheetah", 500), ("swimmer", 200)):
        for kind, selection in (("pbt", Truncation(0.2)), ("pbt_cso", Pairs())):
            pbt, budget = built(f"experiment=paper/{kind}_ppo_{name}")
            ppo = pbt.population.inner
            assert (ppo.env.name, pbt.selection, pbt.population.size) == (name, selection, 128)
            assert (budget.iterations, pbt.steps_per_generation, pbt.warmup_steps) == (generations, 64, 256)
            assert (ppo.eval_episodes, ppo.eval_episodes * pbt.eval_rounds) == (16, 128)
            assert (ppo.num_transitions, ppo.num_epochs, ppo.batch_size, ppo.agent.hidden) == (2048, 4, 256, (256, 256))
            assert (ppo.agent.learning_rate, ppo.agent.max_grad_norm) == (Fixed(3e-4), 10)
            assert ends(pbt) == of_member(table5)
    pbt, _ = built("experiment=paper/pbt_sac")
    sac = pbt.population.inner
    assert isinstance(pbt.population, SharedReplay)
    assert (sac.capacity, sac.batch_size, sac.critic_steps, sac.agent.learned_temperature) == (10**6, 256, 1, False)
    assert (sac.agent.actor_lr, sac.agent.critic_lr) == (Fixed(3e-4), Fixed(3e-4))
    assert ends(pbt) == of_member({"temperature": (0.00674, 1), "discount": (0.86466, 0.99999)})


def pairs(names, others):
    """All pairs, of which those of the first name and those of the first other are unit tests."""
    for name in names:
        for other in others:
            yield pytest.param(name, other, marks=() if name == names[0] or other == others[0] else pytest.mark.program)


@pytest.mark.parametrize(
    ("name", "evolver"), list(pairs(["ddpg", "td3", "sac"], sorted(discovery.find_choices("agent/evolver"))))
)
def test_any_agent_and_any_evolver_compose(name, evolver):
    workflow, _ = built("env=fast", f"agent/learner={name}", f"agent/evolver={evolver}")
    assert isinstance(workflow.agent, SAC if name == "sac" else TD3)
    assert workflow.agent.num_critics == (1 if name == "ddpg" else 2)
    assert workflow.agent.layer_norm
    if name != "sac":
        assert workflow.agent.policy_noise == (0 if name == "ddpg" else 0.2)
    assert isinstance(workflow.evolver, Evosax) == (evolver in ("snes", "open_es"))
    assert workflow.evolver.population_size == 10


@pytest.mark.program
def test_erl_is_that_of_its_dataclass_and_of_the_paper():
    workflow, _ = built("env=fast", "agent=erl")
    numbers = read_numbers(ERL(workflow.env, TD3()))
    assert workflow == ERL(workflow.env, TD3(layer_norm=True))
    assert read_numbers(workflow) == numbers
    assert (workflow.evolver.population_size, workflow.evolver.num_elites, workflow.evolver.tournament) == (10, 2, 3)
    assert isinstance(workflow.evolver.mutation, ERLMutation)
    for name, updates, random_steps in (("ant", 1024, 25_600), ("hopper", 4096, 0), ("halfcheetah", 4096, 0)):
        paper, budget = built(f"experiment=paper/erl_{name}", "env=fast")
        assert (paper.min_updates, paper.max_updates, paper.random_steps) == (updates, updates, random_steps)
        assert (paper.warmup_generations, paper.num_agents, budget.episodes) == (10, 1, 20_000)
        assert read_numbers(paper) == numbers
    workflow, _ = built("env=fast", "agent=erl", "agent/learner=sac", "agent/evolver=cem")
    assert isinstance(workflow.evolver, CEM)
    assert read_numbers(workflow.agent) == read_numbers(SAC())
    assert read_numbers(workflow.evolver) == read_numbers(CEM())


@pytest.mark.parametrize(
    ("selection", "variation"),
    list(pairs(*(sorted(discovery.find_choices(f"agent/{group}")) for group in ("selection", "variation")))),
)
def test_any_selection_and_any_variation_compose(selection, variation):
    chosen = ["env=fast", "agent=pbt", f"agent/selection={selection}", f"agent/variation={variation}"]
    workflow, _ = built(*chosen, "agent.workflow.population.size=8")
    assert type(workflow.selection).__name__.lower().removesuffix("selection") == (
        "no" if selection == "none" else selection
    )
    jax.eval_shape(workflow.init, jax.random.key(0))


def test_pbt_is_that_of_its_dataclass_and_pbt_cso_that_of_the_paper():
    workflow, _ = built("env=fast", "agent=pbt", "agent/inner=a2c")
    assert workflow == PBT(Vmapped(workflow.population.inner, 16))
    workflow, _ = built(
        "env=fast",
        "agent=pbt_cso",
        "agent/inner=sac",
        "agent/population=shared_replay",
        "agent.inner.workflow.agent.discount=0.9",
    )
    assert (workflow.selection, workflow.variation) == (Pairs(), Swarm())
    assert isinstance(workflow.population, SharedReplay)
    assert sorted(workflow.search_space.priors) == ["agent.actor_lr", "agent.critic_lr", "agent.target_entropy"]
    assert workflow.population.inner.agent.discount == 0.9


def of_member(priors):
    """Return them by the names that they have in a member: those of an agent alone are in its workflow."""
    return {name if "." in name else f"agent.{name}": ends for name, ends in priors.items()}


RATE, DISCOUNT = (1e-5, 1e-2), (0.9, 0.999)
SEARCHED = {
    "a2c": {"learning_rate": RATE, "entropy_coef": (1e-5, 0.1), "discount": DISCOUNT},
    "ppo": {"learning_rate": RATE, "entropy_coef": (1e-5, 0.1), "discount": DISCOUNT, "gae_lambda": (0.7, 0.99)}
    | {"clip": (0.05, 0.5)},
    "dqn": {"learning_rate": RATE, "discount": DISCOUNT},
    "td3": {"actor_lr": RATE, "critic_lr": RATE, "discount": DISCOUNT, "exploration_noise": (0.02, 0.5)},
    "sac": {"actor_lr": RATE, "critic_lr": RATE, "discount": DISCOUNT, "target_entropy": (-2, 0)},
    "openes": {"evolver.learning_rate": (1e-3, 0.1), "evolver.std": (5e-3, 0.5)},
    "ga": {"evolver.mutation.std": (1e-3, 0.5)},
    "pbt_cso": {"variation.inertia": (0, 1), "variation.pull": (0, 2)},
    "cemrl": {"agent.actor_lr": RATE, "agent.critic_lr": RATE, "agent.discount": DISCOUNT},
}


@pytest.mark.parametrize("name", SEARCHED)
def test_the_space_of_an_agent_follows_from_its_numbers(name):
    env = "env=cartpole" if name == "dqn" else "env=fast"
    pbt, _ = built(env, "agent=pbt", f"agent/inner={name}")
    assert ends(pbt) == of_member(SEARCHED[name])
    assert pbt.search_space.priors == PriorSpace(built(env, f"agent={name}")[0]).priors


def test_a_space_is_changed_where_that_is_asked_for():
    given = ["clip=0.3", "learning_rate=${log_uniform:1e-4,1e-3}", "gae_lambda=${uniform:0.8,0.99}"]
    given += ["value_coef=${uniform:1,2}", "entropy_coef=${fixed:0.01}"]
    pbt, _ = built("env=fast", "agent=pbt", *given)
    changed = {"learning_rate": (1e-4, 1e-3), "gae_lambda": (0.8, 0.99), "value_coef": (1, 2)}
    assert ends(pbt) == of_member({"discount": DISCOUNT} | changed)
    assert pbt.population.inner.agent.clip == 0.3
    found = pbt.search_space.decode(jnp.full(len(pbt.search_space.priors), 0.5))
    assert (found["agent"]["clip"], found["agent"]["entropy_coef"]) == (np.float32(0.3), np.float32(0.01))
    only, _ = built("env=fast", "agent=pbt", "agent.workflow.search=[clip,agent.discount]", "value_coef=${uniform:1,2}")
    assert sorted(only.search_space.priors) == ["agent.clip", "agent.discount", "agent.value_coef"]
    with pytest.raises(
        OptionError, match=r"search=value_clip: must be a hyperparameter with a prior: agent\.learning_rate, "
    ):
        built("env=fast", "agent=pbt", "agent.workflow.search=[value_clip]")
    with pytest.raises(OptionError, match=r"learning_rate=LogUniform\(.*: a prior needs a meta-workflow"):
        built("env=fast", "agent=ppo", "learning_rate=${log_uniform:1e-4,1e-3}")


def test_what_is_not_at_its_default_is_not_searched():
    space = PriorSpace(SAC(actor_lr=1e-3, discount=LogUniform(0.5, 0.9), critic_lr=Fixed(3e-4)))
    assert list(space.priors) == ["discount", "target_entropy"]
    assert space.priors["discount"] == LogUniform(0.5, 0.9)
    with pytest.raises(OptionError, match=r"prior=Uniform\(low=0, high=2\): must be between 0 and 1"):
        number(0.5, 0, 1, prior=Uniform(0, 2))


def test_meta_workflows_nest():
    nested = ["agent/inner=meta_es", "agent/inner/inner=cemrl", "agent/inner/inner/learner=ddpg"]
    workflow, _ = built("env=fast", "agent=pbt", *nested, "agent.inner.workflow.population.size=6")
    assert isinstance(workflow.population.inner, MetaES)
    assert workflow.population.inner.evolver.population_size == 6
    assert list(workflow.search_space.priors) == ["evolver.step_damping"]
    assert workflow.population.inner.population.inner.agent.num_critics == 1
    assert workflow.population.inner.population.inner.evolver == CEM()


@pytest.mark.program
def test_every_shipped_file_composes_and_says_what_it_is():
    for group in ("agent", "env"):
        for name, choice in discovery.find_choices(group).items():
            assert choice.summary, name
            config.compose_config([f"{group}={name}"])
    schedules = {}
    for name in discovery.find_choices("experiment"):
        cfg = config.to_plain_data(config.compose_config([f"experiment={name}"]))["agent"]
        agent = cfg["name"]
        if agent not in schedules:
            schedules[agent] = find_schedules(config.to_plain_data(config.compose_config([f"agent={agent}"]))["agent"])
        # a number in its place would silently stop the annealing
        assert schedules[agent] <= find_schedules(cfg), name


def test_a_schedule_of_the_whole_training_spans_the_steps_of_a_learner():
    half = "learning_rate=${linear:1e-3,0}"

    def over(*words):
        workflow = config.to_plain_data(config.compose_config([*words, "env_steps=100_000"]))["agent"]["workflow"]
        inner = workflow.get("student") or workflow.get("workflow") or workflow
        return inner.get("population", {"inner": inner})["inner"]["agent"]["learning_rate"]["over"]

    assert over("agent=ppo", "env=cartpole", half) == 100_000
    assert over("agent=ppo", "env=cartpole", "learning_rate=${cosine:1e-3,0,500}") == 500
    assert over("agent=pbt", "env=cartpole", "population.size=8", f"agent.inner.workflow.agent.{half}") == 12_500
    assert over("agent=pbt", "agent/inner=puffer", "env=arcade/grid", "population.size=10") == 10_000
    outer = config.to_plain_data(
        config.compose_config(["agent=pbt", "env=cartpole", "agent.workflow.variation.factor=${linear:1.5,1.1}"])
    )
    assert outer["agent"]["workflow"]["variation"]["factor"]["over"] == 1_000_000, "it counts the steps of all members"
    nested = ["agent=pbt", "agent/inner=pbt", "agent/inner/inner=ppo", "env=cartpole", "env_steps=64_000"]
    nested += ["agent.workflow.population.size=4", "agent.inner.workflow.population.size=8"]
    nested += [f"agent.inner.inner.workflow.agent.{half}", "agent.inner.workflow.variation.factor=${linear:1.5,1.1}"]
    member = config.to_plain_data(config.compose_config(nested))["agent"]["workflow"]["population"]["inner"]
    assert member["variation"]["factor"]["over"] == 16_000
    assert member["population"]["inner"]["agent"]["learning_rate"]["over"] == 2_000
    assert over("agent=paired", "env=maze", "encoder=maze", f"agent.inner.workflow.agent.{half}") == 50_000
    assert over("agent=league", "env=kuhn", "league_exploiters=3", half) == 20_000


def find_schedules(node, prefix=""):
    """Return the dotted names of the hyperparameters of a configuration that are schedules."""
    inner = {f"{prefix}{name}": value for name, value in node.items() if isinstance(value, dict)}
    own = {name for name, value in inner.items() if str(value.get("_target_")).endswith(("Linear", "Cosine"))}
    return own.union(*(find_schedules(value, f"{name}.") for name, value in inner.items()))


WRONG = [
    (["~deterministic=false"], "deterministic=removed: must have a value; options of a training cannot be removed"),
    (["~seed"], "seed=removed: must have a value"),
    (["agnet=td3"], "unknown option agnet; did you mean agent or "),
    (["agent=cemlr"], "unknown agent cemlr; did you mean cemrl, cem or accel? all "),
    (["env=antt"], "unknown env antt; did you mean ant?"),
    (["env=zzz"], "unknown env zzz; all "),
    (["agent/evolver=cemm"], "unknown agent/evolver cemm; did you mean cem?"),
    (["agent/selection=pairs"], "agent/selection: agent has no such component"),
    (["agent=pbt", "agent/selection=pair"], "unknown agent/selection pair; did you mean pairs?"),
    (["agent=pbt", "agent/population=shared_replay"], "agent.inner.workflow=OnPolicy: must be OffPolicy"),
    (["experiment=paper/cemrl_ants"], "did you mean paper/cemrl_ant"),
    (["agent.workflow.batchsize=3"], "did you mean agent.workflow.batch_size?"),
    (["+foo.bar=3"], "unknown option foo.bar"),
    (["++num_seds=3"], "unknown option num_seds; did you mean num_seeds?"),
    (["actor_l=1"], "did you mean agent.workflow.agent.actor_lr? all "),
    (["nun_seeds=4"], "did you mean num_seeds, "),
    (["zzz=4"], ": python -m evorl.train env=fast --cfg job"),
    (["agent.workflow.batch_size=abc"], "agent.workflow.batch_size=abc: must be of type int"),
    (["agent.workflow.batch_size=true"], "agent.workflow.batch_size=True: must be of type int"),
    (["agent.workflow.explore=3"], "agent.workflow.explore=3: must be of type bool"),
    (["agent.workflow.agent.discount=1.5"], "agent.workflow.agent.discount=1.5: must be between 0 and 1"),
    (["agent.workflow.agent.actor_lr=-1"], "actor_lr=-1: must be between 0 and 1"),
    (["agent.workflow.agent.actor_lr=abc"], "actor_lr=abc: must be a number"),
    (["agent.workflow.agent.actor_lr=${linear:1e-3}"], "schedule=${linear:0.001}: must be ${linear:start,end} for"),
    (["agent.workflow.agent.actor_lr=${linear:2,0}"], "actor_lr=Linear(start=2, end=0, over=1000000): must be between"),
    (
        ["agent.workflow.agent.hidden=${linear:2,0}"],
        "agent.hidden=Linear: must be a component with a _target_",
    ),
    (["++agent.workflow.agent.actor_lr={}"], "actor_lr={}: must be a number"),
    (["agent/evolver=snes", "agent.workflow.evolver.numbers.std_init=abc"], "numbers.std_init=abc: must be a number"),
    (["agent.workflow.evolver.population_size=1"], "population_size=1: must be at least 2"),
    (["env.backend=bullet"], "backend=bullet: must be one of auto, generalized, spring, positional, mjx"),
    (["env_steps=-5"], "env_steps=-5: must be a number above 0"),
    (["env_steps=null"], "no budget"),
    (["minutes=abc"], "minutes=abc: must be a number"),
    (["num_seeds=0"], "num_seeds=0: must be at least 1"),
    (["seed=["], "seed=["),
]


@pytest.mark.parametrize(("overrides", "message"), WRONG, ids=[" ".join(o) for o, _ in WRONG])
def test_mistakes_are_one_line_that_teaches(overrides, message):
    with pytest.raises(OptionError) as caught:
        built("env=fast", *overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


PPO_CARTPOLE = "experiment=classic/ppo_cartpole"
CONFLICTS = {
    f"{PPO_CARTPOLE} agent=td3": f"agent=td3: {PPO_CARTPOLE} is made for agent=ppo; give one of the two",
    f"agent=td3 {PPO_CARTPOLE}": f"agent=td3: {PPO_CARTPOLE} is made for agent=ppo; give one of the two",
    "experiment=paper/pbt_cso_ppo_ant agent=pbt": "paper/pbt_cso_ppo_ant is made for agent=pbt_cso;",
    "experiment=paper/pbt_sac agent/inner=ppo": "agent/inner=ppo: experiment=paper/pbt_sac is made for agent/inner=sac",
    "experiment=maze/ppo env=cartpole": "env=cartpole: has no env.num_actions, which experiment=maze/ppo sets",
    "experiment=paper/cemrl_ant agent/evolver=openes": "has no agent.workflow.evolver.shrink, which ",
}


@pytest.mark.parametrize("command", CONFLICTS)
def test_an_experiment_beside_what_it_is_not_made_for_is_named(command):
    with pytest.raises(OptionError, match=re.escape(CONFLICTS[command])):
        config.compose_config(command.split())


@pytest.mark.parametrize(
    "command",
    [
        f"{PPO_CARTPOLE} agent=ppo",
        f"{PPO_CARTPOLE} env=acrobot",
        "experiment=paper/cemrl_ant agent/learner=sac env=hopper",
        "experiment=paper/pbt_sac agent/population=vmapped",
        "experiment=paper/cemrl_ant env=scaled env@env.inner=fast +env.inner.options.a=1",
    ],
)
def test_an_experiment_takes_what_it_leaves_open(command):
    config.compose_config(command.split())


def test_sweeps_are_every_combination():
    jobs = list(config.expand_sweep(["seed=1,2", "agent=td3,ddpg", "minutes=1"]))
    assert jobs == [
        ["seed=1", "agent=td3", "minutes=1"],
        ["seed=1", "agent=ddpg", "minutes=1"],
        ["seed=2", "agent=td3", "minutes=1"],
        ["seed=2", "agent=ddpg", "minutes=1"],
    ]


def test_own_files_in_a_configs_folder_are_found_and_filled_with_defaults(tmp_path, monkeypatch):
    (tmp_path / "configs" / "env").mkdir(parents=True)
    (tmp_path / "configs" / "env" / "mine.yaml").write_text("_target_: evorl.envs.suites.brax.Brax\nname: fast\n")
    monkeypatch.chdir(tmp_path)
    cfg = config.compose_config(["env=mine", "env.backend=spring"])
    assert OmegaConf.to_container(cfg.env)["max_episode_steps"] == 1000
    assert cfg.env.backend == "spring"


def test_own_tables_are_found_listed_and_come_before_shipped_choices(tmp_path, monkeypatch):
    lines = {
        "env/_table.yaml": """
long: {_target_: Brax, name: fast, max_episode_steps: 5000} # as long: as '#5'
ant: Grid
""",
        "env/deep/_table.yaml": "2048: Grid # of a folder in it\n",
        "agent/evolver/_table.yaml": "wide: {workflow: {evolver: {_target_: CMAES, population_size: 40}}} # wide\n",
        "wrapper/_table.yaml": "twice: {_target_: ActionRepeat, count: 2} # twice\n",
    }
    for name, text in lines.items():
        (tmp_path / "configs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "configs" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert "\n  long                      as long: as '#5'\n" in discovery.format_choices()
    assert "\n  deep/2048                 of a folder in it\n" in discovery.format_choices()
    cfg = config.compose_config(["agent=erl", "env=long", "agent/evolver=wide", "wrappers=[twice]"])
    assert (cfg.env.max_episode_steps, cfg.env.backend) == (5000, "auto")
    assert cfg.agent.workflow.evolver.population_size == 40
    assert config.to_plain_data(cfg)["wrappers"] == [{"_target_": "evorl.envs.actions.ActionRepeat", "count": 2}]
    for name in ("ant", "deep/2048"):
        assert config.compose_config([f"env={name}"]).env._target_ == "evorl.envs.sanity.grid.Grid"
    (tmp_path / "configs" / "env" / "ant.yaml").write_text("_target_: Brax\nname: fast\n")
    assert config.compose_config(["env=ant"]).env.name == "fast"
    (tmp_path / "configs" / "env" / "_table.yaml").write_text("ant: 3\n")
    with pytest.raises(OptionError, match=r"_table\.yaml: ant: 3: must be a class, or a mapping with _target_ in"):
        config.compose_config(["env=ant"])
    (tmp_path / "configs" / "env" / "_table.yaml").write_text("ant: {\n")
    with pytest.raises(OptionError, match=r"_table\.yaml: cannot be read: "):
        config.compose_config(["env=ant"])


def test_a_class_by_its_name_alone_is_saved_in_full():
    """By an override, in a list or a mapping too; else the run could not be opened without trusting a word."""
    given = ["agent.workflow.evolver.mutation._target_=ERLMutation", "wrappers=[{_target_: StickyAction}]"]
    cfg = config.compose_config(["env=fast", "agent=ga", *given, "agent.workflow.agent.core={_target_: GRU}"])
    saved = config.to_savable_data(cfg)
    assert saved["agent"]["workflow"]["evolver"]["mutation"]["_target_"] == "evorl.ec.variation.ERLMutation"
    assert saved["wrappers"] == [{"_target_": "evorl.envs.actions.StickyAction"}]
    assert saved["agent"]["workflow"]["agent"]["core"]["_target_"] == "evorl.networks.recurrent.GRU"
    trust_check.require_known(saved["agent"], (), "the configuration")


class TestSuitesAndWrappers:
    def made(self, *overrides):
        data = config.to_plain_data(config.compose_config(["agent=ppo", *overrides]))
        return data, parts.make_task(data)

    def test_what_follows_a_suite_is_a_name(self):
        data, env = self.made("env=gymnax/Catch-bsuite")
        assert env == Gymnax("Catch-bsuite")
        assert data["env"]["name"] == "Catch-bsuite"
        _, inside = self.made("env=frames", "env@env.inner=gymnax/Catch-bsuite")
        assert inside == FrameStack(Gymnax("Catch-bsuite"))

    def test_wrappers_are_a_list_the_first_one_inside(self):
        data, env = self.made("env=cartpole", "wrappers=[sticky,{frames:{count:2}}]")
        assert env == FrameStack(StickyAction(Gymnax("CartPole-v1")), 2)
        assert config.format_title(data) == "ppo on FrameStack-StickyAction-CartPole-v1"
        assert parts.make_task(yaml.safe_load(yaml.safe_dump(data))) == env  # as a run folder has it

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["env=gymnx/Catch-bsuite"], "unknown env gymnx/Catch-bsuite; did you mean gymnax/Catch-bsuite"),
            (["env=gymnax/Cach-bsuite"], "unknown gymnax environment Cach-bsuite; did you mean Catch-bsuite"),
            (["env=gymnax"], "env.name: must be given"),
            (["env=cartpole", "wrappers=[stiky]"], "unknown wrapper stiky; did you mean sticky"),
            (["env=cartpole", "wrappers=sticky"], "wrappers=sticky: must be a list"),
            (["env=cartpole", "wrappers=[{sticky:{prob:1}}]"], "unknown option wrappers: sticky.prob; allowed: probab"),
            (["env=cartpole", "wrappers=[{sticky:{probability:2}}]"], r"wrappers\[0\].probability=2.0: must be at"),
            (["env=cartpole", "wrapper=sticky"], "unknown option wrapper; did you mean wrappers"),
            (["problem=zdt1", "wrappers=[sticky]"], "wrappers=.'StickyAction'.: apply to environments"),
        ],
    )
    def test_mistakes_are_one_line(self, overrides, message):
        with pytest.raises(OptionError, match=message):
            self.made(*overrides)

    def test_lists_know_suites_and_what_is_not_installed(self, monkeypatch):
        monkeypatch.setattr(discovery.importlib.util, "find_spec", lambda name: None)
        lines = discovery.format_choices().splitlines()
        gymnax = ["gymnax/NAME", "Any", "environment", "of", "gymnax,", "by", "its", "id"]
        assert any(line.split() == gymnax for line in lines)
        assert any(line.startswith("  jumanji/NAME") and 'pip install "jumanji>=' in line for line in lines)
        assert any(line.startswith("  pgx_game/NAME") and 'pip install "pgx>=' in line for line in lines)
        assert any(line.startswith("  sticky") for line in lines)
        assert "env=gymnax/CartPole-v1" in list_suite_envs("gymnax").splitlines()
        with pytest.raises(OptionError, match="unknown suite gymnx; did you mean gymnax"):
            list_suite_envs("gymnx")


def test_asking_what_a_part_is_reads_none_of_its_properties():
    """TD3's bounds raise where its spaces are not known, and a prior has bounds too."""
    agent = TD3()
    with pytest.raises(OptionError):
        _ = agent.bounds

    class HasBounds(Protocol):
        @property
        def bounds(self): ...

    assert isinstance(agent, runtime_checkable(HasBounds))
    assert type(Prior) is type(HasBounds)
