"""The cases of the contract: every workflow, agent and evolver of evorl, on tiny environments."""

from dataclasses import replace

from evosax.algorithms import SNES

from evorl.agents import (
    A2C,
    BC,
    DQN,
    IMPALA,
    MAAC,
    MADDPG,
    PPO,
    SAC,
    DiscreteSAC,
    MLPPolicy,
    ValueDecomposition,
)
from evorl.agents.average_policy import AveragePolicy
from evorl.agents.puffer import Puffer
from evorl.agents.random import Random
from evorl.agents.team import Team
from evorl.ec import (
    ARS,
    CEM,
    CMAES,
    CSO,
    GA,
    NSGA2,
    RVEA,
    XNES,
    DiagonalCovariance,
    LowRankES,
    MapElites,
    Noise,
    Novelty,
    NoveltyES,
    OpenES,
    Restarts,
    SeededES,
    SeedGA,
    VanillaES,
)
from evorl.ec.cells import GridArchive
from evorl.ec.cma_me import ImprovementEmitter
from evorl.ec.emitters import EliteEmitter, IsoLineEmitter, TwoEmitters
from evorl.ec.evosax import Evosax
from evorl.ec.variation import ERLMutation
from evorl.envs.games import TwoStep
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.wrappers import FrameStack
from evorl.leagues.league import League
from evorl.leagues.matchmaking import Matchmaking, Roster
from evorl.leagues.nfsp import NFSP
from evorl.leagues.pipeline_psro import PipelinePSRO
from evorl.leagues.psro import PSRO
from evorl.leagues.training_oracle import TrainingOracle, make_single_player_env
from evorl.leagues.xfp import XFP
from evorl.networks.encoders import CNN
from evorl.networks.mixers import MonotonicMixer
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.population import (
    Pairs,
    Perturb,
    Resample,
    Swarm,
    Truncation,
)
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.problems import DTLZ, ZDT
from evorl.replay import FrameReplay, SequenceReplay
from evorl.schedules import Linear
from evorl.ued import (
    PAIRED,
    PLR,
    SFL,
    Learnability,
)
from evorl.workflows import (
    CEMRL,
    ERL,
    PBT,
    PGAME,
    Evolution,
    MetaES,
    OffPolicy,
    OnPolicy,
    Search,
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
    SMALL,
    UPDATES,
    Walk,
    evolution,
    off_policy,
    on_policy,
)

CEM_RL = CEMRL(ENV, AGENT, CEM(4), **UPDATES, **SMALL)
MOVING = {"learning_rate": 3e-2, "max_grad_norm": 0.1}  # so that what bounds a step does so within a few
SOFTLY = {"actor_lr": 1e-2, "temperature_lr": 1e-2}
SOFT = SAC(hidden=(8, 8), **SOFTLY)
OFTEN = ERLMutation(fraction=0.5, super_rate=0.3, reset_rate=0.3, bound=0.5)
SINGLE = [
    Case("off_policy", OFF_POLICY),
    Case("cem_rl", CEM_RL),
    Case("cem_rl_sac", CEMRL(ENV, SOFT, CEM(4), **UPDATES, **SMALL)),
    Case(
        "erl",
        ERL(
            ENV,
            AGENT,
            GA(6, 1, mutation=OFTEN, initial_std=0.1, crossover_rate=0.5),
            num_agents=2,
            elite_pull=0.5,
            **UPDATES,
            **SMALL,
        ),
    ),
    Case(
        "erl_sac_openes",
        ERL(ENV, SOFT, OpenES(4, learning_rate=0.1, weight_decay=1.0), **UPDATES, **SMALL),
    ),
    Case("ppo", on_policy(PPO(**MOVING), num_epochs=2, batch_size=8)),
    Case("a2c", on_policy(A2C(**MOVING), CHOICES, num_epochs=1, batch_size=16)),
    Case("impala", on_policy(IMPALA(**MOVING), num_epochs=1, batch_size=16, staleness=2)),
    Case(
        "puffer",
        on_policy(Puffer(**MOVING), num_epochs=3, batch_size=8, sampling=PrioritizedSegments(2), refresh="minibatch"),
    ),
    Case("bc", off_policy(BC, CHOICES, of_agent=MOVING | {"entropy_coef": 0.1})),
    Case(
        "dqn",
        off_policy(
            DQN,
            CHOICES,
            n_step=2,
            of_agent=MOVING | {"dueling": True, "epsilon": Linear(1.0, 0.05, over=20.0), "huber_delta": 0.1},
        ),
    ),
    Case("sac", off_policy(SAC, of_agent=SOFTLY)),
    Case("discrete_sac", off_policy(DiscreteSAC, CHOICES, of_agent={"temperature_lr": 1e-2})),
    Case("normalized_sac", off_policy(SAC, normalize_observations=True, n_step=2)),
    Case("evolution_vbn", evolution(OpenES(4, std=0.5), "vbn")),
    Case("evolution_running", evolution(ARS(4, 2), "running")),
]
POPULATIONS = {
    "pbt_ppo": (Vmapped(on_policy(PPO(clip=Uniform(0.1, 0.3)), num_epochs=1, batch_size=16), 4), "clip"),
    "pbt_shared_sac": (
        SharedReplay(
            off_policy(
                SAC,
                of_agent={
                    "critic_lr": LogUniform(1e-4, 1e-2),
                    "discount": OneMinus(LogUniform(1e-3, 1e-1)),
                },
            ),
            4,
        ),
        "critic_lr",
    ),
    "pbt_openes": (Vmapped(evolution(OpenES(4, std=LogUniform(1e-2, 1.0)), "vbn"), 4), "std"),
    "pbt_cem_rl": (
        Vmapped(replace(CEM_RL, agent=replace(AGENT, actor_lr=LogUniform(1e-4, 1e-2))), 4),
        "agent.actor_lr",
    ),
}
META = {
    name: PBT(population, Truncation(0.25), steps_per_generation=2, warmup_steps=1, search=(name_searched,))
    for name, (population, name_searched) in POPULATIONS.items()
}
MEMBERS, CLIP = POPULATIONS["pbt_ppo"][0], ("clip",)
FACTORED = replace(META["pbt_ppo"], variation=Perturb(factor=LogUniform(0.05, 0.5)))
META_CASES = [
    *(Case(name, pbt) for name, pbt in META.items()),
    Case("pbt_pbt_ppo", PBT(Vmapped(FACTORED, 4), Truncation(0.25), Resample())),
    Case("pbt_cso_ppo", PBT(MEMBERS, Pairs(), Swarm(), search=CLIP)),
    Case("meta_es_ppo", MetaES(MEMBERS, CEM(4, initial_variance=0.1), lifetime=2, search=CLIP), 24),
]
SHARED = [
    Case("shared_sac", SharedReplay(off_policy(SAC), 2)),
    Case("shared_dqn", SharedReplay(off_policy(DQN, CHOICES, n_step=2), 2)),
]
CELLS = GridArchive((-4.0,), (4.0,), (5,), threshold_min=-9.0)
KIND = {"descriptors": ("return",)}
FROM_ELITES = MapElites(CELLS, TwoEmitters(IsoLineEmitter(3), EliteEmitter(3)), **KIND)
PGA = PGAME(ENV, AGENT, FROM_ELITES, 3, 2, 2, batch_size=8, capacity=64, eval_episodes=6, scan_length=3)
EVOLVERS = [
    Case(name, evolution(evolver, "none"))
    for name, evolver in (
        ("cem", CEM(4, mirrored=True)),
        ("cma_es", CMAES(4)),
        ("sep_cma_es", CMAES(4, covariance=DiagonalCovariance())),
        ("bipop_cma_es", Restarts(CMAES(4), doublings=1, bipop=True)),
        ("cso", CSO(4)),
        ("ga", GA(6, 1, initial_std=0.5, crossover_rate=0.5)),
        ("low_rank_es", LowRankES(4, 2, std=0.5)),
        ("low_rank_es_int8", LowRankES(4, 1, "drawn", "int8", noise=Noise("hash"), std=0.5)),
        ("seed_ga", SeedGA(6, 2, 4, 2, std=0.5)),
        ("seeded_es", SeededES(OpenES(4, std=0.5))),
        ("vanilla_es", VanillaES(4, 2)),
        ("xnes", XNES(4)),
        ("snes", Evosax(SNES, 4)),
        ("map_elites", MapElites(CELLS, IsoLineEmitter(4), archive_learning_rate=0.5, **KIND)),
        ("cma_me", MapElites(CELLS, ImprovementEmitter(2, CMAES(3, active=False)), **KIND)),
        ("novelty", Novelty(GA(6, 1, initial_std=0.5), ("return",), 1, 2, 1, 4, novelty_weight=0.7)),
        ("novelty_es", NoveltyES(OpenES(4, std=0.5), 2, ("return",), 1, 2, 4)),
        ("nsga2", NSGA2(4, {"return": 1.0})),
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
SEARCHED = replace(SEARCH, evolver=NSGA2(8, initial_std=Uniform(0.0, 0.2)))
DIVIDED = Search(DTLZ(2, 2, 3), RVEA(8, 6, 2, initial_std=0.1))
CHASE = Chase()


def team(agent, **options):
    """Agents for all who chase or are chased."""
    return Team(agent(hidden=(4,)), **options)


MAPPO = OnPolicy(CHASE, team(PPO, centralized=True, shared={"hunter": False}), 4, 4, 1, 16, eval_episodes=6)
CLIPPED = Team(PPO(hidden=(4,), clip=Uniform(0.1, 0.3)), centralized=True, shared={"hunter": False})
SEARCHED_MAPPO = replace(MAPPO, agent=CLIPPED)
IDQN = OffPolicy(CHASE, team(DQN, obs_agent_id=True), num_envs=4, num_steps=2, num_updates=4, **SMALL)
TWO_STEP = TwoStep()
MIXED = DQN(hidden=(4,))
QMIX = ValueDecomposition(MIXED, MonotonicMixer(3, (4,)))
KUHN = ExtensiveFormGame(Kuhn())
OPPOSED = make_single_player_env(KUHN)
PLAYER = PPO(hidden=(4,))
PLAYER = OnPolicy(OPPOSED, PLAYER, 4, 4, 1, 16, eval_episodes=6)
PIPELINE = PipelinePSRO(KUHN, oracle=TrainingOracle(PLAYER, warm=True, iterations=2), capacity=6, episodes=4, levels=2)
RESPONSE = DQN(hidden=(4,))
RESPONSE = OffPolicy(OPPOSED, RESPONSE, num_envs=4, num_steps=4, num_updates=2, policy_delay=1, **SMALL)
AVERAGE = AveragePolicy(hidden=(4,))
SELF_PLAY = NFSP(KUHN, RESPONSE, AVERAGE, reservoir=16, anticipation=0.5)
MATCHES = Matchmaking(snapshot_steps=16.0, timeout=32.0)
OTHERS = [
    Case("search", replace(SEARCH, evolver=NSGA2(8, initial_std=0.1)), 1),
    Case("search_rvea", DIVIDED, 1),
    Case("pbt_search", PBT(Vmapped(SEARCHED, 4), search=("initial_std",)), 1),
    Case("pga_me", replace(PGA, policy_lr=1e-2)),
    Case("plr", PLR(LEVELS, capacity=8)),
    Case("paired", PAIRED(LEVELS, TEACHER)),
    Case("sfl", SFL(LEVELS, Learnability(), 4, 6, 2, 2, 2)),
    Case("accel", PLR(LEVELS, capacity=6, num_edits=1, parallel=True)),
    Case("recurrent_sac", off_policy(SAC, **RECURRENT | {"of_agent": SOFTLY | {"core": GRU(4)}})),
    Case("shared_recurrent_dqn", SharedReplay(off_policy(DQN, CHOICES, **RECURRENT), 2)),
    Case("image_dqn", OffPolicy(MAZE, seen(DQN), 4, 2, 4, replay=FrameReplay(2), **SMALL)),
    Case("image_lstm", OnPolicy(MAZE, seen(PPO, core=LSTM(4)), 4, 4, 1, 8, eval_episodes=6)),
    Case(
        "s5",
        OnPolicy(WALK, replace(REMEMBERING, core=S5(6, 1, 4, 1)), 4, 4, 1, 16, eval_episodes=6),
    ),
    Case("mappo", MAPPO),
    Case("idqn", IDQN),
    Case("pbt_mappo", PBT(Vmapped(SEARCHED_MAPPO, 4), search=CLIP)),
    Case("qmix", OffPolicy(TWO_STEP, QMIX, 4, 2, 4, **SMALL)),
    Case("maddpg", off_policy(MADDPG, CHASE, n_step=2)),
    Case("maac", off_policy(MAAC, CHASE, of_agent={"width": 8})),
    Case("psro_exact", PSRO(KUHN, capacity=6), 1),
    Case("psro", PSRO(KUHN, TrainingOracle(PLAYER, restarts=2, iterations=2), capacity=6, episodes=4), 1),
    Case("pipeline_psro", PIPELINE, 1),
    Case("league", League(KUHN, PLAYER, Roster(1, 1, 1, 2), matches=MATCHES), 1),
    Case("xfp", XFP(KUHN), 1),
    Case("nfsp", SELF_PLAY),
    Case("random", OnPolicy(CHOICES, RANDOM, 4, 4, 1, 16, eval_episodes=6)),
    Case(
        "recurrent_ppo",
        OnPolicy(WALK, REMEMBERING, 4, 4, 2, 8, sampling=Shuffled(2), eval_episodes=6),
    ),
    Case("recurrent_openes", Evolution(WALK, EVOLVED, OpenES(4), eval_episodes=6, vbn_steps=8)),
]
TWINNED = [  # one workflow of each kind, for which two copies side by side are compiled
    next(case for case in [*SINGLE, *META_CASES] if case.name == name)
    for name in ("ppo", "off_policy", "evolution_vbn", "pbt_ppo")
]
TWINS = [Case(f"vmapped_{case.name}", Vmapped(case.workflow, 2)) for case in TWINNED]
CASES = [*SINGLE, *SHARED, *META_CASES, *EVOLVERS, *OTHERS, *TWINS]
