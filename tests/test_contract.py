"""What every workflow must keep, on tiny environments; each workflow is compiled once and shared by its checks."""

import dataclasses
import json
import os
from functools import cached_property, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import SNES
from typing_extensions import get_protocol_members

import evorl
from evorl import hyperparameters, tree
from evorl.agents import (
    A2C,
    DQN,
    IMPALA,
    MAAC,
    MADDPG,
    PPO,
    SAC,
    TD3,
    A2CHyperparams,
    DiscreteSAC,
    DiscreteSACHyperparams,
    DQNHyperparams,
    IMPALAHyperparams,
    MAACHyperparams,
    MADDPGHyperparams,
    MLPPolicy,
    PolicyGradient,
    PPOHyperparams,
    SACHyperparams,
    TD3Hyperparams,
    ValueDecomposition,
)
from evorl.agents.average_policy import AveragePolicy
from evorl.agents.puffer import Puffer, PufferHyperparams
from evorl.agents.random import Random, RandomHyperparams
from evorl.agents.team import Team, member_spaces
from evorl.ec import (
    ARS,
    CEM,
    CMAES,
    CSO,
    GA,
    NSGA2,
    RVEA,
    ARSHyperparams,
    CEMHyperparams,
    CMAESHyperparams,
    CSOHyperparams,
    Diagonal,
    GAHyperparams,
    LowRankES,
    MapElites,
    MapElitesHyperparams,
    Noise,
    Novelty,
    NoveltyES,
    NoveltyESHyperparams,
    NoveltyHyperparams,
    NSGA2Hyperparams,
    OpenES,
    OpenESHyperparams,
    Restarts,
    RestartsHyperparams,
    RVEAHyperparams,
    SeededES,
    SeedGA,
    SeedGAHyperparams,
    VanillaES,
    VanillaESHyperparams,
)
from evorl.ec.cells import GridArchive
from evorl.ec.cma_me import ImprovementEmitter
from evorl.ec.emitters import EliteEmitter, IsoLineEmitter, TwoEmitters
from evorl.ec.evosax import Evosax
from evorl.ec.variation import ERLMutation, ERLMutationHyperparams
from evorl.envs.games import TwoStep
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.tabled import Tabled
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.probe import Probe
from evorl.envs.wrappers import Frames
from evorl.leagues.learned import Learned, LearnedHyperparams, of_a_player
from evorl.leagues.matchmaking import MatchHyperparams, Roster
from evorl.levels import Learnability
from evorl.networks.encoders import CNN
from evorl.networks.mixers import MonotonicMixer
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.population import (
    LogUniform,
    OneMinus,
    Pairs,
    PerturbHyperparams,
    Resample,
    ResampleHyperparams,
    Swarm,
    SwarmHyperparams,
    Truncation,
    Uniform,
)
from evorl.problems import DTLZ, ZDT
from evorl.replay import FrameReplay, SequenceReplay
from evorl.training.program import Program
from evorl.types import Agent, Evolver, Workflow
from evorl.workflows import (
    CEMRL,
    ERL,
    PBT,
    PGAME,
    PLR,
    Adversary,
    AdversaryHyperparams,
    CEMRLHyperparams,
    ERLHyperparams,
    Evolution,
    EvolutionHyperparams,
    Learnable,
    LearnableHyperparams,
    MetaES,
    MetaESHyperparams,
    OffPolicy,
    OnPolicy,
    PBTHyperparams,
    PLRHyperparams,
    Search,
    SearchHyperparams,
    SharedReplay,
    Vmapped,
)
from evorl.workflows.base import advance
from evorl.workflows.league import League, LeagueHyperparams
from evorl.workflows.nfsp import NFSP, NFSPHyperparams
from evorl.workflows.pipeline_psro import PipelinePSRO
from evorl.workflows.psro import PSRO, PSROHyperparams
from evorl.workflows.sampling import PrioritizedSegments, Shuffled
from evorl.workflows.xfp import XFP, XFPHyperparams
from tests.conftest import leaves_equal
from tests.gaming import Chase
from tests.remembering import FlaxGRU


class Walk(Probe):
    """Three steps along a line whose reward depends on everything, so that every hyperparameter can matter."""

    max_episode_steps = 3

    def next(self, obs):
        return obs + 0.3

    def reward(self, obs, action):
        return obs - (action - 0.4 * obs) ** 2


ENV = Walk()
AGENT = TD3(ENV.observation_space, ENV.action_space, hidden=(8, 8))
SMALL = {"batch_size": 8, "capacity": 64, "random_steps": 12, "eval_episodes": 6, "chunk": 3}
OFF_POLICY = OffPolicy(ENV, AGENT, num_envs=4, num_steps=2, num_updates=4, **SMALL)


def off_policy(agent, env=ENV, **options):
    agent = agent(env.observation_space, env.action_space, hidden=(8, 8), **options.pop("of_agent", {}))
    return OffPolicy(env, agent, num_envs=4, num_steps=2, num_updates=4, **SMALL, **options)


def on_policy(objective, env=ENV, **options):
    agent = PolicyGradient(env.observation_space, env.action_space, objective, hidden=(8, 8))
    return OnPolicy(env, agent, num_envs=4, num_steps=4, eval_episodes=6, **options)


CHOICES = Walk(choices=3)
SAC_AGENT = SAC(ENV.observation_space, ENV.action_space, hidden=(8, 8))
UPDATES = {"min_updates": 2, "max_updates": 3}


def evolution(evolver, normalization):
    policy = MLPPolicy(ENV.observation_space, ENV.action_space, hidden=(8,))
    return Evolution(ENV, policy, evolver, 2, normalization=normalization, vbn_steps=12, eval_episodes=6, chunk=3)


@dataclasses.dataclass(frozen=True)
class Case:
    """A workflow, compiled once for all checks."""

    name: str
    workflow: object
    hyperparams: object
    eval_episodes: int = 6

    @cached_property
    def program(self):
        return Program(self.workflow, [0], chunk=4, side_by_side=True)

    @cached_property
    def init(self):
        return jax.jit(self.program.init)

    @cached_property
    def run(self):
        return jax.jit(self.program.run)

    @cached_property
    def step(self):
        return jax.jit(self.workflow.step)

    def steps(self, hyperparams, count, chunk=4):
        """The state after count steps in calls of at most chunk."""
        keys = self.program.keys
        state = self.init(keys, hyperparams)
        for first in range(0, count, chunk):
            state, _, _ = self.run(
                state, keys, jnp.uint32(first), jnp.int32(min(chunk, count - first)), jnp.bool_(False)
            )
        return state


def pair(hyperparams):
    return tree.broadcast(hyperparameters.as_state(hyperparams), 2)


CEM_RL = CEMRL(ENV, AGENT, CEM(4), **UPDATES, **SMALL)
RESAMPLED = PBTHyperparams(ResampleHyperparams())
MOVING = {"learning_rate": 3e-2, "max_grad_norm": 0.1}  # so that what bounds a step does so within a few
SOFT = SACHyperparams(actor_lr=1e-2, temperature_lr=1e-2)
OFTEN = ERLMutationHyperparams(fraction=0.5, super_rate=0.3, reset_rate=0.3, bound=0.5)
SINGLE = [
    Case("off_policy", OFF_POLICY, TD3Hyperparams()),
    Case("cem_rl", CEM_RL, CEMRLHyperparams()),
    Case("cem_rl_sac", CEMRL(ENV, SAC_AGENT, CEM(4), **UPDATES, **SMALL), CEMRLHyperparams(agent=SOFT)),
    Case(
        "erl",
        ERL(ENV, AGENT, GA(6, 1, mutation=ERLMutation()), num_agents=2, **UPDATES, **SMALL),
        ERLHyperparams(evolver=GAHyperparams(0.1, crossover_rate=0.5, mutation=OFTEN), elite_pull=0.5),
    ),
    Case(
        "erl_sac_openes",
        ERL(ENV, SAC_AGENT, OpenES(4), **UPDATES, **SMALL),
        ERLHyperparams(SOFT, OpenESHyperparams(learning_rate=0.1, weight_decay=0.1)),
    ),
    Case("ppo", on_policy(PPO(), num_epochs=2, batch_size=8), PPOHyperparams(**MOVING)),
    Case("a2c", on_policy(A2C(), CHOICES, num_epochs=1, batch_size=16), A2CHyperparams(**MOVING)),
    Case("impala", on_policy(IMPALA(), num_epochs=1, batch_size=16, staleness=2), IMPALAHyperparams(**MOVING)),
    Case(
        "puffer",
        on_policy(Puffer(), num_epochs=3, batch_size=8, sampling=PrioritizedSegments(2), refresh="minibatch"),
        PufferHyperparams(**MOVING),
    ),
    Case(
        "dqn",
        off_policy(DQN, CHOICES, n_step=2, of_agent={"dueling": True}),
        DQNHyperparams(**MOVING, epsilon_steps=20.0, max_error=0.1),
    ),
    Case("sac", off_policy(SAC), SOFT),
    Case("discrete_sac", off_policy(DiscreteSAC, CHOICES), DiscreteSACHyperparams(temperature_lr=1e-2)),
    Case("evolution_vbn", evolution(OpenES(4), "vbn"), EvolutionHyperparams(OpenESHyperparams(std=0.5))),
    Case("evolution_running", evolution(ARS(4, 1), "running"), EvolutionHyperparams(ARSHyperparams())),
]
POPULATIONS = {
    "pbt_ppo": (Vmapped(on_policy(PPO(), num_epochs=1, batch_size=16), 4), PPOHyperparams(clip=Uniform(0.1, 0.3))),
    "pbt_shared_sac": (
        SharedReplay(off_policy(SAC), 4),
        SACHyperparams(critic_lr=LogUniform(1e-4, 1e-2), discount=OneMinus(LogUniform(1e-3, 1e-1))),
    ),
    "pbt_openes": (
        Vmapped(evolution(OpenES(4), "vbn"), 4),
        EvolutionHyperparams(OpenESHyperparams(std=LogUniform(1e-2, 1.0))),
    ),
    "pbt_cem_rl": (Vmapped(CEM_RL, 4), CEMRLHyperparams(TD3Hyperparams(actor_lr=LogUniform(1e-4, 1e-2)))),
}
META = {
    name: PBT(population, space, Truncation(0.25), steps_per_generation=2, warmup_steps=1)
    for name, (population, space) in POPULATIONS.items()
}
FACTOR = PBTHyperparams(PerturbHyperparams(LogUniform(0.05, 0.5)))
META_CASES = [
    *(Case(name, pbt, PBTHyperparams()) for name, pbt in META.items()),
    Case("pbt_pbt_ppo", PBT(Vmapped(META["pbt_ppo"], 4), FACTOR, Truncation(0.25), Resample()), RESAMPLED),
    Case("pbt_cso_ppo", PBT(*POPULATIONS["pbt_ppo"], Pairs(), Swarm()), PBTHyperparams(SwarmHyperparams())),
    Case(
        "meta_es_ppo", MetaES(*POPULATIONS["pbt_ppo"], CEM(4), lifetime=2), MetaESHyperparams(CEMHyperparams(0.1)), 24
    ),
    Case("vmapped_pbt_cem_rl", Vmapped(META["pbt_cem_rl"], 2), pair(PBTHyperparams())),
]
CASES = [
    *SINGLE,
    *(Case(f"vmapped_{case.name}", Vmapped(case.workflow, 2), pair(case.hyperparams)) for case in SINGLE),
    Case("shared_sac", SharedReplay(off_policy(SAC), 2), pair(SACHyperparams())),
    Case("shared_dqn", SharedReplay(off_policy(DQN, CHOICES, n_step=2), 2), pair(DQNHyperparams())),
]
CELLS = GridArchive((-4.0,), (4.0,), (5,), lowest=-9.0)
KIND = {"descriptors": ("return",)}
EMITTED = MapElitesHyperparams(threshold_rate=0.5)
FROM_ELITES = MapElites(CELLS, TwoEmitters(IsoLineEmitter(3), EliteEmitter(3)), **KIND)
PGA = PGAME(ENV, AGENT, FROM_ELITES, 3, 2, 2, batch_size=8, capacity=64, eval_episodes=6, chunk=3)
EVOLVERS = [
    Case(name, evolution(evolver, "none"), EvolutionHyperparams(hyperparams))
    for name, evolver, hyperparams in (
        ("cem", CEM(4, mirrored=True), CEMHyperparams()),
        ("cma_es", CMAES(4), CMAESHyperparams()),
        ("sep_cma_es", CMAES(4, covariance=Diagonal()), CMAESHyperparams()),
        ("bipop_cma_es", Restarts(CMAES(4), doublings=1, bipop=True), RestartsHyperparams()),
        ("cso", CSO(4), CSOHyperparams()),
        ("ga", GA(6, 1), GAHyperparams(0.5, crossover_rate=0.5)),
        ("low_rank_es", LowRankES(4, 2), OpenESHyperparams(std=0.5)),
        ("low_rank_es_int8", LowRankES(4, 1, "drawn", "int8", noise=Noise("hash")), OpenESHyperparams(std=0.5)),
        ("seed_ga", SeedGA(6, 2, 4, 2), SeedGAHyperparams(0.5)),
        ("seeded_es", SeededES(OpenES(4)), OpenESHyperparams(std=0.5)),
        ("vanilla_es", VanillaES(4, 2), VanillaESHyperparams()),
        ("snes", Evosax(SNES, 4), {}),
        ("map_elites", MapElites(CELLS, IsoLineEmitter(4), **KIND), EMITTED),
        ("cma_me", MapElites(CELLS, ImprovementEmitter(2, 3), **KIND), MapElitesHyperparams(CMAESHyperparams())),
        ("novelty", Novelty(GA(6, 1), ("return",), 1, 2, 1, 4), NoveltyHyperparams(GAHyperparams(0.5), 0.7)),
        ("novelty_es", NoveltyES(OpenES(4), 2, ("return",), 1, 2, 4), NoveltyESHyperparams(OpenESHyperparams(std=0.5))),
        ("nsga2", NSGA2(4, {"return": 1.0}), NSGA2Hyperparams()),
    )
]
RANDOM = Random(CHOICES.observation_space, CHOICES.action_space)
WALK = Walk()
REMEMBERING = PolicyGradient(WALK.observation_space, WALK.action_space, hidden=(4,), core=FlaxGRU(3))
EVOLVED = MLPPolicy(WALK.observation_space, WALK.action_space, hidden=(4,), core=FlaxGRU(3))
MAZE = Frames(Maze(RandomWalls(3, 3, fewest=2, most=2), view_size=3, max_episode_steps=5), 2)
SEQUENCES = SequenceReplay(length=3, burn_in=1, stride=2)
RECURRENT = {"of_agent": {"core": GRU(4)}, "replay": SEQUENCES, "n_step": 2}


def seen(agent, **options):
    """An agent that looks at the maze."""
    encoder = CNN((2,), (2,), (1,))
    return agent(MAZE.observation_space, MAZE.action_space, hidden=(4,), encoder=encoder, **options)


SEEING = seen(PolicyGradient, core=LSTM(4))
ONE_FRAME = MAZE.inner
STUDENT = PolicyGradient(ONE_FRAME.observation_space, ONE_FRAME.action_space, hidden=(4,), core=GRU(3))
LEVELS = OnPolicy(ONE_FRAME, STUDENT, 3, 12, 1, 12, eval_episodes=6)
EDITOR = ONE_FRAME.editor()
TEACHER = OnPolicy(EDITOR, PolicyGradient(EDITOR.observation_space, EDITOR.action_space, hidden=(4,)), 3, 0, 1, 0)
HALVES = Shuffled(2)
SEARCH = Search(ZDT(size=4), NSGA2(8))
DIVIDED = Search(DTLZ(2, 2, 3), RVEA(8, 6, 2))
CHASE = Chase()
OF_HUNTER = member_spaces(CHASE.observation_space, CHASE.action_space)


def team(agent, **options):
    """Agents for all who chase or are chased."""
    return Team(CHASE.observation_space, CHASE.action_space, agent(*OF_HUNTER, hidden=(4,)), **options)


MAPPO = OnPolicy(CHASE, team(PolicyGradient, central=True, shared={"hunter": False}), 4, 4, 1, 16, eval_episodes=6)
IDQN = OffPolicy(CHASE, team(DQN, ids=True), num_envs=4, num_steps=2, num_updates=4, **SMALL)
SEARCHED = SearchHyperparams(NSGA2Hyperparams(Uniform(0.0, 0.2)))
TWO_STEP = TwoStep()
MIXED = DQN(*member_spaces(TWO_STEP.observation_space, TWO_STEP.action_space), hidden=(4,))
QMIX = ValueDecomposition(TWO_STEP.observation_space, TWO_STEP.action_space, MIXED, MonotonicMixer(3, (4,)))
KUHN = Tabled(Kuhn())
OPPOSED = of_a_player(KUHN)
PLAYER = PolicyGradient(OPPOSED.observation_space, OPPOSED.action_space, hidden=(4,))
PLAYER = OnPolicy(OPPOSED, PLAYER, 4, 4, 1, 16, eval_episodes=6)
PIPELINE = PipelinePSRO(KUHN, oracle=Learned(PLAYER, warm=True), capacity=6, episodes=4, levels=2)
RESPONSE = DQN(OPPOSED.observation_space, OPPOSED.action_space, hidden=(4,))
RESPONSE = OffPolicy(OPPOSED, RESPONSE, num_envs=4, num_steps=4, num_updates=2, actor_interval=1, **SMALL)
AVERAGE = AveragePolicy(OPPOSED.observation_space, OPPOSED.action_space, hidden=(4,))
SELF_PLAY = NFSP(KUHN, RESPONSE, AVERAGE, reservoir=16)
OFTEN_ANSWERED = NFSPHyperparams(anticipation=0.5)
ANSWERING = PSROHyperparams(LearnedHyperparams(PPOHyperparams(), iterations=2.0))
IN_LEAGUE = LeagueHyperparams(PPOHyperparams(), MatchHyperparams(snapshot_steps=16.0, timeout=32.0))
OTHERS = [
    *EVOLVERS,
    Case("search", SEARCH, SearchHyperparams(NSGA2Hyperparams(0.1)), 1),
    Case("search_rvea", DIVIDED, SearchHyperparams(RVEAHyperparams(initial_std=0.1)), 1),
    Case("vmapped_search", Vmapped(SEARCH, 2), pair(SearchHyperparams(NSGA2Hyperparams(0.1))), 1),
    Case("pbt_search", PBT(Vmapped(SEARCH, 4), SEARCHED), PBTHyperparams(), 1),
    Case("pga_me", PGA, dataclasses.replace(PGA.hyperparams(), policy_lr=1e-2)),
    Case("vmapped_pga_me", Vmapped(PGA, 2), pair(PGA.hyperparams())),
    Case("plr", PLR(LEVELS, capacity=8), PLRHyperparams()),
    Case("paired", Adversary(LEVELS, TEACHER), AdversaryHyperparams()),
    Case("learnable", Learnable(LEVELS, Learnability(), 4, 6, 2, 12, 2), LearnableHyperparams()),
    Case("vmapped_accel", Vmapped(PLR(LEVELS, capacity=6, num_edits=1, side_by_side=True), 2), pair(PLRHyperparams())),
    Case("recurrent_sac", off_policy(SAC, **RECURRENT), SOFT),
    Case("shared_recurrent_dqn", SharedReplay(off_policy(DQN, CHOICES, **RECURRENT), 2), pair(DQNHyperparams())),
    Case("image_dqn", OffPolicy(MAZE, seen(DQN), 4, 2, 4, replay=FrameReplay(2), **SMALL), DQNHyperparams()),
    Case(
        "image_lstm", OnPolicy(MAZE, seen(PolicyGradient, core=LSTM(4)), 4, 4, 1, 8, eval_episodes=6), PPOHyperparams()
    ),
    Case(
        "vmapped_s5",
        Vmapped(OnPolicy(WALK, dataclasses.replace(REMEMBERING, core=S5(6, 1, 4, 1)), 4, 4, 1, 16, eval_episodes=6), 2),
        pair(PPOHyperparams()),
    ),
    Case("mappo", MAPPO, PPOHyperparams()),
    Case("vmapped_idqn", Vmapped(IDQN, 2), pair(DQNHyperparams())),
    Case("pbt_mappo", PBT(Vmapped(MAPPO, 4), PPOHyperparams(clip=Uniform(0.1, 0.3))), PBTHyperparams()),
    Case("qmix", OffPolicy(TWO_STEP, QMIX, 4, 2, 4, **SMALL), DQNHyperparams()),
    Case("maddpg", off_policy(MADDPG, CHASE, n_step=2), MADDPGHyperparams()),
    Case("maac", off_policy(MAAC, CHASE, of_agent={"width": 8}), MAACHyperparams()),
    Case("psro_exact", PSRO(KUHN, capacity=6), PSROHyperparams(), 1),
    Case("psro", PSRO(KUHN, Learned(PLAYER, restarts=2), capacity=6, episodes=4), ANSWERING, 1),
    Case("pipeline_psro", PIPELINE, ANSWERING, 1),
    Case("league", League(KUHN, PLAYER, Roster(1, 1, 1, 2)), IN_LEAGUE, 1),
    Case("vmapped_psro", Vmapped(PSRO(KUHN, capacity=6), 2), PSROHyperparams(), 1),
    Case("xfp", XFP(KUHN), XFPHyperparams(), 1),
    Case("nfsp", SELF_PLAY, OFTEN_ANSWERED),
    Case("vmapped_nfsp", Vmapped(SELF_PLAY, 2), pair(OFTEN_ANSWERED)),
    Case("random", OnPolicy(CHOICES, RANDOM, 4, 4, 1, 16, eval_episodes=6), RandomHyperparams()),
    Case(
        "recurrent_ppo",
        OnPolicy(WALK, REMEMBERING, 4, 4, 2, 8, sampling=Shuffled(2), eval_episodes=6),
        PPOHyperparams(),
    ),
    Case("recurrent_openes", Evolution(WALK, EVOLVED, OpenES(4), eval_episodes=6, vbn_steps=8), EvolutionHyperparams()),
]
ALIKE = ("cem_rl_sac", "erl_sac_openes", "impala", "discrete_sac")  # other cases put their workflows side by side too


def of(cases, slow):
    """A test for each case, those of these names among the slow ones."""
    marked = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name in slow)) for case in cases]
    return pytest.mark.parametrize("case", marked)


every = of(CASES, [f"vmapped_{name}" for name in ALIKE])
single = of(SINGLE, [])
side_by_side = of(SINGLE, ALIKE)
RECORDED = Path(__file__).parent / "recorded"
recorded = of([case for case in CASES if not case.name.startswith("vmapped")], [])


def types(state):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)


@every
def test_step_keeps_shapes_dtypes_and_weak_types(case):
    state = jax.eval_shape(case.program.init, case.program.keys, case.hyperparams)
    after, metrics, evaluation = jax.eval_shape(
        partial(advance, case.workflow), state, jax.random.key(0), jnp.bool_(False)
    )
    assert types(after) == types(state)
    assert {"return", "episodes"} <= set(evaluation)
    assert {"env_steps", "episodes", "gradient_steps", "return"} <= set(metrics)


@every
def test_evaluation_leaves_the_state_alone(case):
    state = case.steps(case.hyperparams, 3)
    after, _, evaluation = case.run(state, case.program.keys, jnp.uint32(3), jnp.int32(1), jnp.bool_(True))
    assert leaves_equal(state, after)
    np.testing.assert_array_equal(evaluation["episodes"], case.eval_episodes)


@recorded
def test_it_computes_what_it_computed(case):
    """Of three steps and an evaluation; EVORL_RECORD=1 records anew, for a change that says what moved and why."""
    path, state = RECORDED / f"{case.name}.json", case.steps(case.hyperparams, 2)
    state, step, _ = case.run(state, case.program.keys, jnp.uint32(2), jnp.int32(1), jnp.bool_(False))
    *_, evaluation = case.run(state, case.program.keys, jnp.uint32(3), jnp.int32(1), jnp.bool_(True))
    found = {"jax": jax.__version__, **described({"evaluation": evaluation, "state": state, "step": step})}
    if os.environ.get("EVORL_RECORD"):
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    before = json.loads(path.read_text(encoding="utf-8"))
    if before.pop("jax") != found["jax"]:
        pytest.skip("recorded with another jax")
    same_numbers({name: found[name] for name in found if name != "jax"}, before)


def same_numbers(found, before):
    assert found.keys() == before.keys()
    for name in found:
        (shape, *numbers), (shape_before, *numbers_before) = found[name], before[name]
        assert shape == shape_before, name
        np.testing.assert_allclose(
            numbers, numbers_before, rtol=1e-5, atol=1e-5 * numbers_before[1] + 1e-7, err_msg=name
        )


def described(results):
    """By name the shape, mean and norm of every leaf."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        x = np.asarray(jax.random.key_data(leaf) if is_key else leaf, np.float64)
        x = np.where(np.isinf(x), np.sign(x) * 1e9, x)
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = [list(leaf.shape), *(float(f"{v:.7g}") for v in (x.mean() if x.size else 0, np.linalg.norm(x)))]
    return found


@side_by_side
def test_two_settings_side_by_side_are_two_runs(case):
    settings = [
        case.hyperparams,
        moved(
            case.hyperparams,
            next(n for n in hyperparameters.leaves(case.hyperparams) if n.endswith(("actor_lr", "learning_rate"))),
        ),
    ]
    both = Vmapped(case.workflow, 2)
    key = jax.random.key(3)
    state = jax.jit(both.init)(key, tree.stack([hyperparameters.as_state(s) for s in settings]))
    together = next(c for c in CASES if c.name == f"vmapped_{case.name}").step
    alone = [jax.jit(case.workflow.init)(k, s) for k, s in zip(jax.random.split(key), settings, strict=True)]
    for i in range(3):
        step_key = jax.random.fold_in(key, i)
        state, _ = together(state, step_key)
        alone = [case.step(s, k)[0] for s, k in zip(alone, jax.random.split(step_key), strict=True)]
    for i in range(2):
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=2e-4), state.agent, alone[i].agent
        )
    weights = jax.tree.leaves(state.agent.actor.params)
    assert max(float(jnp.abs(x[0] - x[1]).max(initial=0)) for x in weights) > 1e-3


@single
def test_every_hyperparameter_matters_and_one_compilation_serves_all(case):
    def output(hyperparams):
        """All weights."""
        leaves = jax.tree_util.tree_leaves_with_path(case.steps(hyperparams, 4).agent)
        return np.concatenate([np.ravel(x) for path, x in leaves if "moments" not in jax.tree_util.keystr(path)])

    base = output(case.hyperparams)
    compiled = case.run._cache_size()
    dead = []
    for name in hyperparameters.leaves(case.hyperparams):
        others = [output(moved(case.hyperparams, name, up)) for up in (False, True)]
        if not any(np.abs(other - base).max() > 1e-6 * np.abs(base).max() for other in others):
            dead.append(name)
    expected = ["agent.explore_std"] if case.name == "cem_rl" else []  # its population acts without noise by default
    assert dead == expected
    assert case.run._cache_size() == compiled


def moved(hyperparams, name, up=True):
    """The hyperparameters with the one of this dotted name at another value of its range."""
    first, _, rest = name.partition(".")
    value = getattr(hyperparams, first)
    if rest:
        return hyperparams.replace(**{first: moved(value, rest, up)})
    high = hyperparameters.leaves(hyperparams)[first][2]
    if value == np.inf:
        return hyperparams.replace(**{first: 1e-4})
    return hyperparams.replace(**{first: (value + high) / 2 if up and high < np.inf else value / 2})


@every
def test_chunks_and_saving_do_not_change_the_run(case):
    whole, pieces = case.steps(case.hyperparams, 6, 4), case.steps(case.hyperparams, 6, 1)
    assert leaves_equal(whole, pieces)
    half = case.steps(case.hyperparams, 3)
    loaded = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), half)
    end, _, _ = case.run(loaded, case.program.keys, jnp.uint32(3), jnp.int32(3), jnp.bool_(False))
    assert leaves_equal(whole, end)


@side_by_side
def test_copied_members_act_differently_and_keep_their_replay(case):
    population = next(c for c in CASES if c.name == f"vmapped_{case.name}")
    state = population.steps(population.hyperparams, 3)
    copied = jax.jit(population.workflow.copy_members)(state, jnp.array([0, 0]))
    assert leaves_equal(tree.index(copied.agent, 0), tree.index(copied.agent, 1))
    experience = next((name for name in ("replay", "slots") if hasattr(state, name)), None)
    if experience is not None:
        assert leaves_equal(getattr(copied, experience), getattr(state, experience))
    assert not leaves_equal(tree.index(state.agent, 0), tree.index(state.agent, 1))
    after, _ = population.step(copied, jax.random.key(9))
    differs = getattr(after, experience or "evolver")
    first, second = (tree.index(jax.tree.map(jnp.asarray, differs), i) for i in range(2))
    assert not leaves_equal(first, second)


@every
def test_it_serves_as_the_inside_of_a_meta_workflow(case):
    """What PBT does with it: init, steps, evaluate, inherit and new hyperparameters, in one program."""
    inner = case.workflow
    hyperparams = tree.broadcast(hyperparameters.as_state(case.hyperparams), 3)
    population = Vmapped(inner, 3)

    def generation(key):
        state = population.init(key, hyperparams)
        state, _ = jax.lax.scan(population.step, state, jax.random.split(key, 2))
        fitness = population.evaluate(state, key)["return"].reshape(3, -1).mean(1)
        source = jnp.full(3, fitness.argmax())
        state = population.copy_members(state, source)
        return population.with_hyperparams(state, population.hyperparams(tree.index(state, source)))

    shapes = jax.eval_shape(lambda key: population.init(key, hyperparams), jax.random.key(0))
    after = jax.eval_shape(generation, jax.random.key(0))
    assert types(after) == types(shapes)


def test_every_workflow_agent_and_evolver_of_evorl_has_a_case():
    """They are found by what the package gives, so that none is left out."""

    def parts(x):
        if dataclasses.is_dataclass(x):
            yield type(x)
            for field in dataclasses.fields(x):
                yield from parts(getattr(x, field.name))

    given = {value for name in evorl.__all__ if isinstance(value := getattr(evorl, name), type)}
    protocols = [get_protocol_members(protocol) for protocol in (Workflow, Agent, Evolver)]
    wanted = {each for each in given if any(all(hasattr(each, name) for name in one) for one in protocols)}
    assert len(wanted) >= 25
    cases = [*CASES, *META_CASES, *OTHERS]
    assert wanted - {each for case in cases for each in parts(case.workflow)} == set()


SLOW = [  # whose parts have cases of their own, or which take long to compile
    "image_lstm",
    "vmapped_idqn",
    "pbt_pbt_ppo",
    "vmapped_pbt_cem_rl",
    "pbt_cem_rl",
    "vmapped_pga_me",
    "vmapped_accel",
    "vmapped_s5",
    "pbt_mappo",
    "pbt_shared_sac",
    "vmapped_psro",
    "vmapped_nfsp",
    "league",
]


@of([*META_CASES, *OTHERS], SLOW)
def test_the_others_keep_the_contract(case):
    """In one test, so that each is compiled once."""
    test_step_keeps_shapes_dtypes_and_weak_types(case)
    test_evaluation_leaves_the_state_alone(case)
    test_it_computes_what_it_computed(case)
    test_chunks_and_saving_do_not_change_the_run(case)
    test_it_serves_as_the_inside_of_a_meta_workflow(case)
    compiled = case.run._cache_size()
    if not jax.tree.leaves(case.hyperparams):
        return
    others = jax.tree.map(lambda x: 0.9 * x, case.hyperparams)
    assert not leaves_equal(case.steps(others, 4), case.steps(case.hyperparams, 4))
    assert case.run._cache_size() == compiled
