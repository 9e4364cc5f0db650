"""The cases of the contract: every workflow, agent and evolver of evorl, on tiny environments."""

import dataclasses

from evosax.algorithms import SNES

from evorl import hyperparameters, tree
from evorl.agents import (
    A2C,
    DQN,
    IMPALA,
    MAAC,
    MADDPG,
    PPO,
    SAC,
    A2CHyperparams,
    DiscreteSAC,
    DiscreteSACHyperparams,
    DQNHyperparams,
    IMPALAHyperparams,
    MAACHyperparams,
    MADDPGHyperparams,
    MLPPolicy,
    PPOHyperparams,
    SACHyperparams,
    TD3Hyperparams,
    ValueDecomposition,
)
from evorl.agents.average_policy import AveragePolicy
from evorl.agents.puffer import Puffer, PufferHyperparams
from evorl.agents.random import Random, RandomHyperparams
from evorl.agents.team import Team
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
    DiagonalCovariance,
    GAHyperparams,
    ImprovementEmitterHyperparams,
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
    SeededESHyperparams,
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
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.wrappers import FrameStack
from evorl.leagues.league import League, LeagueHyperparams
from evorl.leagues.matchmaking import MatchmakingHyperparams, Roster
from evorl.leagues.nfsp import NFSP, NFSPHyperparams
from evorl.leagues.pipeline_psro import PipelinePSRO
from evorl.leagues.psro import PSRO, PSROHyperparams
from evorl.leagues.training_oracle import TrainingOracle, TrainingOracleHyperparams, make_single_player_env
from evorl.leagues.xfp import XFP, XFPHyperparams
from evorl.networks.encoders import CNN
from evorl.networks.mixers import MonotonicMixer
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.parts import read_numbers
from evorl.population import (
    Pairs,
    PerturbHyperparams,
    Resample,
    ResampleHyperparams,
    Swarm,
    SwarmHyperparams,
    Truncation,
)
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.problems import DTLZ, ZDT
from evorl.replay import FrameReplay, SequenceReplay
from evorl.ued import (
    PLR,
    Adversary,
    AdversaryHyperparams,
    Learnability,
    Learnable,
    LearnableHyperparams,
    PLRHyperparams,
)
from evorl.workflows import (
    CEMRL,
    ERL,
    PBT,
    PGAME,
    CEMRLHyperparams,
    ERLHyperparams,
    Evolution,
    EvolutionHyperparams,
    MetaES,
    MetaESHyperparams,
    OffPolicy,
    OnPolicy,
    PBTHyperparams,
    Search,
    SearchHyperparams,
    SharedReplay,
    Vmapped,
)
from evorl.workflows.sampling import PrioritizedSegments, Shuffled
from tests.contract import Case
from tests.gaming import Chase
from tests.remembering import FlaxGRU
from tests.tiny import (
    AGENT,
    CHOICES,
    ENV,
    OFF_POLICY,
    SAC_AGENT,
    SMALL,
    UPDATES,
    Walk,
    evolution,
    off_policy,
    on_policy,
)


def pair(hyperparams):
    return tree.broadcast(hyperparameters.as_arrays(hyperparams), 2)


CEM_RL = CEMRL(ENV, AGENT, CEM(4), **UPDATES, **SMALL)
RESAMPLED = PBTHyperparams(ResampleHyperparams())
MOVING = {"learning_rate": 3e-2, "max_grad_norm": 0.1}  # so that what bounds a step does so within a few
SOFT = SACHyperparams(actor_lr=1e-2, temperature_lr=1e-2)
OFTEN = ERLMutationHyperparams(fraction=0.5, super_rate=0.3, reset_rate=0.3, bound=0.5)
SPREAD_GA = GAHyperparams(initial_std=0.5)
SINGLE = [
    Case("off_policy", OFF_POLICY, TD3Hyperparams()),
    Case("cem_rl", CEM_RL, CEMRLHyperparams()),
    Case("cem_rl_sac", CEMRL(ENV, SAC_AGENT, CEM(4), **UPDATES, **SMALL), CEMRLHyperparams(agent=SOFT)),
    Case(
        "erl",
        ERL(ENV, AGENT, GA(6, 1, mutation=ERLMutation(), mutation_rate=0.9), num_agents=2, **UPDATES, **SMALL),
        ERLHyperparams(evolver=GAHyperparams(initial_std=0.1, crossover_rate=0.5, mutation=OFTEN), elite_pull=0.5),
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
    Case("evolution_vbn", evolution(OpenES(4), "vbn"), EvolutionHyperparams(evolver=OpenESHyperparams(std=0.5))),
    Case("evolution_running", evolution(ARS(4, 1), "running"), EvolutionHyperparams(evolver=ARSHyperparams())),
]
POPULATIONS = {
    "pbt_ppo": (Vmapped(on_policy(PPO(), num_epochs=1, batch_size=16), 4), PPOHyperparams(clip=Uniform(0.1, 0.3))),
    "pbt_shared_sac": (
        SharedReplay(off_policy(SAC), 4),
        SACHyperparams(critic_lr=LogUniform(1e-4, 1e-2), discount=OneMinus(LogUniform(1e-3, 1e-1))),
    ),
    "pbt_openes": (
        Vmapped(evolution(OpenES(4), "vbn"), 4),
        EvolutionHyperparams(evolver=OpenESHyperparams(std=LogUniform(1e-2, 1.0))),
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
]
SHARED = [
    Case("shared_sac", SharedReplay(off_policy(SAC), 2), pair(SACHyperparams())),
    Case("shared_dqn", SharedReplay(off_policy(DQN, CHOICES, n_step=2), 2), pair(DQNHyperparams())),
]
CELLS = GridArchive((-4.0,), (4.0,), (5,), lowest=-9.0)
KIND = {"descriptors": ("return",)}
EMITTED = MapElitesHyperparams(threshold_rate=0.5)
FROM_ELITES = MapElites(CELLS, TwoEmitters(IsoLineEmitter(3), EliteEmitter(3)), **KIND)
PGA = PGAME(ENV, AGENT, FROM_ELITES, 3, 2, 2, batch_size=8, capacity=64, eval_episodes=6, chunk=3)
EVOLVERS = [
    Case(name, evolution(evolver, "none"), EvolutionHyperparams(evolver=hyperparams))
    for name, evolver, hyperparams in (
        ("cem", CEM(4, mirrored=True), CEMHyperparams()),
        ("cma_es", CMAES(4), CMAESHyperparams()),
        ("sep_cma_es", CMAES(4, covariance=DiagonalCovariance()), CMAESHyperparams()),
        ("bipop_cma_es", Restarts(CMAES(4), doublings=1, bipop=True), RestartsHyperparams()),
        ("cso", CSO(4), CSOHyperparams()),
        ("ga", GA(6, 1), GAHyperparams(initial_std=0.5, crossover_rate=0.5)),
        ("low_rank_es", LowRankES(4, 2), OpenESHyperparams(std=0.5)),
        ("low_rank_es_int8", LowRankES(4, 1, "drawn", "int8", noise=Noise("hash")), OpenESHyperparams(std=0.5)),
        ("seed_ga", SeedGA(6, 2, 4, 2), SeedGAHyperparams(0.5)),
        ("seeded_es", SeededES(OpenES(4)), SeededESHyperparams(OpenESHyperparams(std=0.5))),
        ("vanilla_es", VanillaES(4, 2), VanillaESHyperparams()),
        ("snes", Evosax(SNES, 4), {}),
        ("map_elites", MapElites(CELLS, IsoLineEmitter(4), **KIND), EMITTED),
        (
            "cma_me",
            MapElites(CELLS, ImprovementEmitter(2, CMAES(3, active=False)), **KIND),
            MapElitesHyperparams(ImprovementEmitterHyperparams()),
        ),
        (
            "novelty",
            Novelty(GA(6, 1), ("return",), 1, 2, 1, 4),
            NoveltyHyperparams(SPREAD_GA, 0.7),
        ),
        ("novelty_es", NoveltyES(OpenES(4), 2, ("return",), 1, 2, 4), NoveltyESHyperparams(OpenESHyperparams(std=0.5))),
        ("nsga2", NSGA2(4, {"return": 1.0}), NSGA2Hyperparams()),
    )
]
RANDOM = Random()
WALK = Walk()
REMEMBERING = PPO(hidden=(4,), core=FlaxGRU(3))
EVOLVED = MLPPolicy(hidden=(4,), core=FlaxGRU(3))
MAZE = FrameStack(Maze(RandomWalls(3, 3, fewest=2, most=2), view_size=3, max_episode_steps=5), 2)
SEQUENCES = SequenceReplay(length=3, burn_in=1, stride=2)
RECURRENT = {"of_agent": {"core": GRU(4)}, "replay": SEQUENCES, "n_step": 2}


def seen(agent, **options):
    """An agent that looks at the maze."""
    encoder = CNN((2,), (2,), (1,))
    return agent(hidden=(4,), encoder=encoder, **options)


SEEING = seen(PPO, core=LSTM(4))
ONE_FRAME = MAZE.inner
STUDENT = PPO(hidden=(4,), core=GRU(3))
LEVELS = OnPolicy(ONE_FRAME, STUDENT, 3, 12, 1, 12, eval_episodes=6)
EDITOR = ONE_FRAME.make_editor()
TEACHER = OnPolicy(EDITOR, PPO(hidden=(4,)), 3, 0, 1, 0)
HALVES = Shuffled(2)
SEARCH = Search(ZDT(size=4), NSGA2(8))
DIVIDED = Search(DTLZ(2, 2, 3), RVEA(8, 6, 2))
CHASE = Chase()


def team(agent, **options):
    """Agents for all who chase or are chased."""
    return Team(agent(hidden=(4,)), **options)


MAPPO = OnPolicy(CHASE, team(PPO, central=True, shared={"hunter": False}), 4, 4, 1, 16, eval_episodes=6)
IDQN = OffPolicy(CHASE, team(DQN, ids=True), num_envs=4, num_steps=2, num_updates=4, **SMALL)
SEARCHED = SearchHyperparams(NSGA2Hyperparams(initial_std=Uniform(0.0, 0.2)))
TWO_STEP = TwoStep()
MIXED = DQN(hidden=(4,))
QMIX = ValueDecomposition(MIXED, MonotonicMixer(3, (4,)))
KUHN = ExtensiveFormGame(Kuhn())
OPPOSED = make_single_player_env(KUHN)
PLAYER = PPO(hidden=(4,))
PLAYER = OnPolicy(OPPOSED, PLAYER, 4, 4, 1, 16, eval_episodes=6)
PIPELINE = PipelinePSRO(KUHN, oracle=TrainingOracle(PLAYER, warm=True), capacity=6, episodes=4, levels=2)
RESPONSE = DQN(hidden=(4,))
RESPONSE = OffPolicy(OPPOSED, RESPONSE, num_envs=4, num_steps=4, num_updates=2, actor_interval=1, **SMALL)
AVERAGE = AveragePolicy(hidden=(4,))
SELF_PLAY = NFSP(KUHN, RESPONSE, AVERAGE, reservoir=16)
OFTEN_ANSWERED = NFSPHyperparams(anticipation=0.5)
ANSWERING = PSROHyperparams(TrainingOracleHyperparams(PPOHyperparams(), iterations=2.0))
IN_LEAGUE = LeagueHyperparams(PPOHyperparams(), MatchmakingHyperparams(snapshot_steps=16.0, timeout=32.0))
OTHERS = [
    Case("search", SEARCH, SearchHyperparams(NSGA2Hyperparams(initial_std=0.1)), 1),
    Case("search_rvea", DIVIDED, SearchHyperparams(RVEAHyperparams(initial_std=0.1)), 1),
    Case("pbt_search", PBT(Vmapped(SEARCH, 4), SEARCHED), PBTHyperparams(), 1),
    Case("pga_me", PGA, dataclasses.replace(read_numbers(PGA), policy_lr=1e-2)),
    Case("plr", PLR(LEVELS, capacity=8), PLRHyperparams()),
    Case("paired", Adversary(LEVELS, TEACHER), AdversaryHyperparams()),
    Case("learnable", Learnable(LEVELS, Learnability(), 4, 6, 2, 2, 2), LearnableHyperparams()),
    Case("accel", PLR(LEVELS, capacity=6, num_edits=1, side_by_side=True), PLRHyperparams()),
    Case("recurrent_sac", off_policy(SAC, **RECURRENT), SOFT),
    Case("shared_recurrent_dqn", SharedReplay(off_policy(DQN, CHOICES, **RECURRENT), 2), pair(DQNHyperparams())),
    Case("image_dqn", OffPolicy(MAZE, seen(DQN), 4, 2, 4, replay=FrameReplay(2), **SMALL), DQNHyperparams()),
    Case("image_lstm", OnPolicy(MAZE, seen(PPO, core=LSTM(4)), 4, 4, 1, 8, eval_episodes=6), PPOHyperparams()),
    Case(
        "s5",
        OnPolicy(WALK, dataclasses.replace(REMEMBERING, core=S5(6, 1, 4, 1)), 4, 4, 1, 16, eval_episodes=6),
        PPOHyperparams(),
    ),
    Case("mappo", MAPPO, PPOHyperparams()),
    Case("idqn", IDQN, DQNHyperparams()),
    Case("pbt_mappo", PBT(Vmapped(MAPPO, 4), PPOHyperparams(clip=Uniform(0.1, 0.3))), PBTHyperparams()),
    Case("qmix", OffPolicy(TWO_STEP, QMIX, 4, 2, 4, **SMALL), DQNHyperparams()),
    Case("maddpg", off_policy(MADDPG, CHASE, n_step=2), MADDPGHyperparams()),
    Case("maac", off_policy(MAAC, CHASE, of_agent={"width": 8}), MAACHyperparams()),
    Case("psro_exact", PSRO(KUHN, capacity=6), PSROHyperparams(), 1),
    Case("psro", PSRO(KUHN, TrainingOracle(PLAYER, restarts=2), capacity=6, episodes=4), ANSWERING, 1),
    Case("pipeline_psro", PIPELINE, ANSWERING, 1),
    Case("league", League(KUHN, PLAYER, Roster(1, 1, 1, 2)), IN_LEAGUE, 1),
    Case("xfp", XFP(KUHN), XFPHyperparams(), 1),
    Case("nfsp", SELF_PLAY, OFTEN_ANSWERED),
    Case("random", OnPolicy(CHOICES, RANDOM, 4, 4, 1, 16, eval_episodes=6), RandomHyperparams()),
    Case(
        "recurrent_ppo",
        OnPolicy(WALK, REMEMBERING, 4, 4, 2, 8, sampling=Shuffled(2), eval_episodes=6),
        PPOHyperparams(),
    ),
    Case("recurrent_openes", Evolution(WALK, EVOLVED, OpenES(4), eval_episodes=6, vbn_steps=8), EvolutionHyperparams()),
]
TWINNED = [  # one workflow of each kind, for which two copies side by side are compiled
    next(case for case in [*SINGLE, *META_CASES] if case.name == name)
    for name in ("ppo", "off_policy", "evolution_vbn", "pbt_ppo")
]
TWINS = [Case(f"vmapped_{case.name}", Vmapped(case.workflow, 2), pair(case.hyperparams)) for case in TWINNED]
CASES = [*SINGLE, *SHARED, *META_CASES, *EVOLVERS, *OTHERS, *TWINS]
