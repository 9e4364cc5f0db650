"""The jobs of the comparison: what is done, at which sizes, and which libraries do it."""

from dataclasses import dataclass
from typing import Any

from evorl.training.devices import CPU_OPTIONS


@dataclass(frozen=True)
class Library:
    """A library and what pip installs of it; nothing for evorl and what it depends on, which run in this environment.

    Args:
        title: Name of the library.
        requirements: Requirements that pip installs.
        unusable: Why no job uses it, if none does.
    """

    title: str
    requirements: tuple[str, ...] = ()
    unusable: str = ""


@dataclass(frozen=True)
class Side:
    """One implementation of a job, in the file TOPIC_LIBRARY.py of sides/.

    Args:
        library: Name in LIBRARIES.
        job: Name of the job in the file.
        variant: What distinguishes it from another side of the same library.
        flags: XLA_FLAGS of its process.
        in_summary: Whether it counts in the range of its library.
    """

    library: str
    job: str
    variant: str = ""
    flags: str = ""
    in_summary: bool = True

    @property
    def label(self) -> str:
        title = LIBRARIES[self.library].title
        return f"{title}, {self.variant}" if self.variant else title


@dataclass(frozen=True)
class Job:
    """A job that several libraries do.

    Args:
        topic: Section of the page, and the first part of the names of the files in sides/.
        what: What is done, with all settings that matter.
        unit: Unit of the work that a round does.
        sides: The implementations, evorl's first.
        sizes: Values of what `axis` names.
        axis: What the size is, such as "population".
        rounds: Number of timed rounds after the first.
        score: What a round's "score" is, if it has one; a round is then one seed.
        goal: Score that ends a round, so that its time counts, whatever its work; rounds may end before at a limit.
        minimizes: Whether the goal is reached from above.
        note: Where a side does other or less work.
        version: Number of times that the work of a side has changed; rows of other versions do not count.
    """

    topic: str
    what: str
    unit: str
    sides: tuple[Side, ...]
    sizes: tuple[int, ...] = (0,)
    axis: str = ""
    rounds: int = 5
    score: str = ""
    goal: float | None = None
    minimizes: bool = False
    note: str = ""
    version: int = 0

    @property
    def skip(self) -> int:
        """Return the number of timed rounds that do not count: some libraries compile again in the second round."""
        return 0 if self.score else 1


TOPICS = {
    "workflows": "Evolutionary RL",
    "devices": "Several devices",
    "rl": "RL agents",
    "brax": "RL agents on Brax",
    "es": "Evolution strategies",
    "mo": "Multi-objective search",
    "qd": "Quality diversity",
    "tuning": "Hyperparameter search",
    "envs": "Environments",
    "games": "Games",
}
SB3 = ("stable-baselines3==2.9.2", "gymnasium==1.4.0")
LIBRARIES = {
    "evorl": Library("evorl"),
    "bound": Library("bound"),
    "evosax": Library("evosax", ("evosax==0.3.2", "gymnax", "six")),
    "pycma": Library("pycma", ("cma",)),
    "evox": Library("EvoX", ("evox",)),
    "pymoo": Library("pymoo", ("pymoo",)),
    "brax": Library("Brax"),
    "minimax": Library("minimax", ("minimax-lib==0.2.0", "flax==0.10.6")),
    "jaxued": Library("jaxued", ("jaxued", "six")),
    "jaxmarl": Library("JaxMARL", ("jaxmarl==0.2.0",)),
    "openspiel": Library("OpenSpiel", ("open_spiel", "matplotlib", "cvxopt", "cvxpy", "ecos", "scipy", "networkx")),
    "pufferlib": Library("PufferLib", ("pufferlib",)),
    "flax": Library("Flax, by hand"),
    "flashbax": Library("flashbax", ("flashbax",)),
    "rejax": Library("rejax", ("rejax==0.1.3", "gymnax==0.0.9")),
    "evorl_emi": Library("EvoRL", ("evorl-jax==0.1.1",)),
    "qdax": Library("QDax", ("qdax==0.5.0",)),
    "pyribs": Library("pyribs", ("ribs==0.12.0",)),
    "sb3": Library("Stable-Baselines3", (*SB3, "sbx-rl==0.28.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0")),
    "ray": Library("Ray Tune", ("ray[tune]==2.60.0", "scikit-learn==1.9.1", *SB3)),
    "optuna": Library("Optuna", ("optuna==5.0.0", *SB3)),
    "agilerl": Library("AgileRL", ("agilerl==2.58.0", "peft==0.21.2")),
    "cleanrl": Library(
        "CleanRL",
        ("cleanrl==0.4.8",),
        unusable="cleanrl 0.4.8 of the index ends at its import on Python 3.11: cannot import name 'Monitor' from "
        "'gym.wrappers'",
    ),
}
ELEMENTWISE = (
    "evosax multiplies its factor of the covariance elementwise by an elementwise exponential, where the paper has "
    "matrix products and the matrix exponential."
)
BBOB = (
    "the 24 functions, each from a random point with standard deviation 2 until a value 0.01 above the minimum or "
    "100 n^2 evaluations, without restarts; 4 + 3 log n individuals"
)
COMPILES_AGAIN = (
    "SBX compiles again in each round, which takes about as long as the rest, so the summary leaves it out."
)
RESTORED = "Brax's trainers call two functions that newer JAX no longer has; the job gives them back."
SMALL_PPO = "without evaluation, 5 environments x 100 steps, 5 epochs of 5 minibatches, networks of 64, 64"
JOBS = {
    "PPO on CartPole, seeds": Job(
        "rl",
        f"PPO for 100,000 steps (5,000 with 64 seeds) {SMALL_PPO}",
        "env steps",
        (Side("evorl", "ppo_seeds"), Side("rejax", "ppo_seeds")),
        sizes=(1, 64),
        axis="seeds in one program",
    ),
    **{
        f"PPO on {title}": Job(
            "rl",
            f"PPO for 100,000 steps (5,000 with 64 seeds) {SMALL_PPO}",
            "env steps",
            (Side("evorl", f"ppo_{env}"), Side("rejax", f"ppo_{env}")),
            sizes=(1, 64),
            axis="seeds in one program",
        )
        for env, title in (("Acrobot-v1", "Acrobot"), ("Breakout-MinAtar", "Breakout of MinAtar"))
    },
    "Updates of TD3": Job(
        "rl",
        "updates of TD3 on random batches of 256, 17 observations, 6 actions, one update of the actor for two of the "
        "critics, networks of 256, 256; members of a population are vectorized",
        "updates",
        (Side("evorl", "td3_updates"), Side("flax", "td3_updates"), Side("qdax", "td3_updates")),
        sizes=(1, 8, 32),
        axis="members",
        note="The others delay the actor by `lax.cond`, evorl by a block of two updates of the critics and one of the "
        "actor. QDax always computes the gradient of the actor.",
    ),
    "Replay buffer": Job(
        "rl",
        "adds, each followed by a batch of 256, in one program; 1,000,000 transitions of 42 float32, full",
        "adds",
        (Side("evorl", "replay"), Side("flashbax", "replay")),
        sizes=(1, 128),
        axis="rows of an add",
    ),
    "OpenES on the sphere": Job(
        "es",
        "128 mirrored individuals, Adam, standard deviation 0.02",
        "generations",
        (Side("evorl", "openes"), Side("evosax", "openes"), Side("evox", "openes")),
        sizes=(1_000, 10_000, 100_000),
        axis="parameters",
        note="EvoX uses the values themselves, evorl and evosax centered ranks.",
    ),
    "CMA-ES on the sphere": Job(
        "es",
        "4 + 3 log n individuals, full covariance",
        "generations",
        (Side("evorl", "cma_es"), Side("evosax", "cma_es"), Side("pycma", "cma_es"), Side("evox", "cma_es")),
        sizes=(10, 100, 1000),
        axis="parameters",
        note="CMA-ES of EvoX is not compiled, since torch.compile fails on it.",
    ),
    "CMA-ES on Rosenbrock's function": Job(
        "es",
        "from 0 with standard deviation 0.5 until a value below 1e-6 or 100 n^2 evaluations; 4 + 3 log n individuals",
        "evaluations",
        (
            Side("evorl", "cma_es_to_target"),
            Side("evosax", "cma_es_to_target"),
            Side("pycma", "cma_es_to_target"),
            Side("evox", "cma_es_to_target"),
        ),
        sizes=(10, 40),
        axis="parameters",
        rounds=8,
        score="last value",
        goal=1e-6,
        minimizes=True,
        note="evorl, evosax and EvoX compute in float32, pycma in float64.",
    ),
    "CMA-ES on BBOB": Job(
        "es",
        BBOB,
        "evaluations",
        (Side("evorl", "bbob"), Side("evosax", "bbob"), Side("pycma", "bbob")),
        sizes=(10,),
        axis="parameters",
        rounds=8,
        score="functions solved",
        note="evorl and evosax search the same functions, in float32; those of pycma have other optima and rotations.",
    ),
    "xNES on the sphere": Job(
        "es",
        "4 + 3 log n individuals",
        "generations",
        (Side("evorl", "xnes"), Side("evosax", "xnes"), Side("evox", "xnes")),
        sizes=(10, 100),
        axis="parameters",
        note=ELEMENTWISE,
    ),
    "xNES on BBOB": Job(
        "es",
        BBOB,
        "evaluations",
        (Side("evorl", "bbob_xnes"), Side("evosax", "bbob_xnes")),
        sizes=(10,),
        axis="parameters",
        rounds=8,
        score="functions solved",
        note=f"evorl and evosax search the same functions, in float32. {ELEMENTWISE}",
    ),
    "OpenES on CartPole": Job(
        "es",
        "policies of 64, 64; one episode per individual and generation",
        "generations",
        (Side("evorl", "cartpole"), Side("evosax", "cartpole")),
        sizes=(64, 512, 4096),
        axis="population",
        note="evosax simulates all 500 steps of every episode, evorl ends with the longest episode.",
    ),
    "NSGA-II on ZDT": Job(
        "mo",
        "250 generations of 200 individuals, SBX (15, at 0.9) and polynomial mutation (20)",
        "generations",
        (Side("evorl", "nsga2"), Side("pymoo", "nsga2")),
        sizes=(1, 2, 3),
        axis="problem",
        rounds=8,
        score="hypervolume at (1.1, 1.1)",
    ),
    "RVEA on DTLZ": Job(
        "mo",
        "250 generations of 105 individuals, 3 objectives, 12 variables",
        "generations",
        (Side("evorl", "rvea"), Side("pymoo", "rvea")),
        sizes=(2,),
        axis="problem",
        rounds=8,
        score="hypervolume at (1.1, 1.1, 1.1)",
    ),
    **{
        f"PPO on {title}": Job(
            "brax",
            "16 steps per iteration, 4 epochs of 8 minibatches, networks of 256, 256",
            "env steps",
            (Side("evorl", f"ppo_{name}"), Side("brax", f"ppo_{name}")),
            sizes=sizes,
            axis="environments",
            note=RESTORED,
            version=1,
        )
        for name, title, sizes in (
            ("inverted_pendulum", "inverted_pendulum (generalized)", (64, 1024)),
            ("hopper", "hopper (spring)", (64,)),
            ("ant", "ant (spring)", (64, 512)),
        )
    },
    **{
        f"Steps of {title}": Job(
            "brax",
            "random actions, ended episodes begin again, all observations, rewards and ends summed",
            "env steps",
            (Side("evorl", f"steps_{name}"), Side("brax", f"steps_{name}")),
            sizes=(128,),
            axis="environments",
        )
        for name, title in (
            ("inverted_pendulum", "inverted_pendulum (generalized)"),
            ("hopper", "hopper (spring)"),
            ("ant", "ant (spring)"),
        )
    },
    "SAC on ant (spring)": Job(
        "brax",
        "one step per environment, then 64 updates of batch 256, networks of 256, 256",
        "env steps",
        (Side("evorl", "sac_ant"), Side("brax", "sac_ant")),
        sizes=(128,),
        axis="environments",
        note=RESTORED,
        version=1,
    ),
    "Random play in mazes": Job(
        "envs",
        "13 x 13 cells, 60 wall draws, view of 5, at most 250 steps, a new level for each episode; all outputs summed",
        "env steps",
        (Side("evorl", "maze"), Side("minimax", "maze"), Side("jaxued", "maze")),
        sizes=(1, 32, 256, 1024),
        axis="environments",
    ),
    **{
        f"Random play in simple_{name}": Job(
            "envs",
            f"{agents}, 100 steps from new starts in each call, all outputs summed",
            "env steps",
            (Side("evorl", name), Side("jaxmarl", name)),
            sizes=(128, 1024),
            axis="environments",
            note="Episodes of JaxMARL have 26 steps, evorl's 25.",
        )
        for name, agents in (("spread", "3 agents"), ("tag", "4 agents"), ("adversary", "3 agents"))
    },
    **{
        title: Job(
            "envs",
            f"{what}; 32 mazes x 256 steps, LSTM of 256, 5 epochs of one minibatch",
            "iterations",
            (Side("evorl", name), Side("minimax", name)),
        )
        for title, name, what in (
            ("PPO in mazes", "domain_randomization", "an iteration on new levels"),
            ("PLR in mazes, new levels", "plr_new_levels", "an iteration that scores new levels, without an update"),
            ("PLR in mazes, replays", "plr_replays", "an iteration on levels of a half full buffer of 4,000"),
        )
    },
    "PSRO on Leduc poker": Job(
        "games",
        "exact best responses to the Nash equilibrium of the policies so far",
        "iterations",
        (Side("evorl", "psro"), Side("openspiel", "psro")),
        sizes=(20,),
        axis="iterations",
        rounds=3,
        score="NashConv",
        note="evorl computes exact payoffs, and the NashConv of each iteration; OpenSpiel simulates 100 games for a "
        "payoff, and computes the last NashConv.",
    ),
    "Fictitious play on Leduc poker": Job(
        "games",
        "in extensive form",
        "iterations",
        (Side("evorl", "xfp"), Side("openspiel", "xfp")),
        note="evorl also computes the NashConv of each iteration.",
    ),
}


def of_workflow(job: str, what: str, note: str = "", has_flags: bool = False) -> Job:
    """Return a job of the topic "workflows" on Brax (generalized), without evaluation: evorl, its bound and EvoRL.

    Args:
        job: Name of the job in the files of the sides.
        what: See `Job`.
        note: See `Job`.
        has_flags: Whether EvoRL also runs with the compiler options that evorl sets itself.
    """
    sides = Side("evorl", job), Side("bound", job), Side("evorl_emi", job)
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in CPU_OPTIONS.items())
    sides += (Side("evorl_emi", job, "evorl's compiler options", flags, in_summary=False),) * has_flags
    return Job("workflows", what, "iterations", sides, note=note)


def on_devices(job: str, what: str, unit: str, *peers: str, **options: Any) -> Job:
    """Return a job of the topic "devices": evorl and its peers, each with two devices and with one."""
    counts = ("2", "2 devices"), ("1", "1 device")
    sides = tuple(Side(library, f"{job}_{n}", name) for library in ("evorl", *peers) for n, name in counts)
    return Job("devices", what, unit, sides, **options)


NORMALIZED = "observations normalized, networks of 256, 256"
PPO = f"64 environments x 32 steps, 4 epochs of minibatches of 256, {NORMALIZED}"
PBT = (
    "{} members, each with 2 PPO iterations of 8 environments x 64 steps, 4 epochs of minibatches of 128, then 4 "
    "episodes of 100 steps; clip range, discount and GAE lambda are searched, " + NORMALIZED
)
CEM_RL = (
    "10 individuals, 5 elites, 5 learners, 64 updates of one critic and five actors, batch 256 for each learner, "
    "networks of 256, 256 with layer normalization, replay buffer of 100,000"
)
OFF_POLICY = (
    "2 environment steps, 2 updates of the critics and 1 of the actor in each iteration, 512 iterations in one "
    "program, batch 256, networks of 256, 256, replay buffer of 100,000"
)
OPENES = (
    "{} individuals, one episode of {} steps each, networks of 256, 256, observations normalized with the statistics "
    "of 10,000 random steps"
)
RANDOM_STEPS = (
    "Round 0 has the random steps; evorl takes them with all environments, EvoRL with those of one individual."
)
PPO_NOTE = "The loss of EvoRL masks the step that resets an environment; evorl has no such step."
PBT_NOTE = (
    "EvoRL has PBT for a variant of PPO, which keeps hyperparameters in its state. Perturbations multiply by a random "
    "factor in EvoRL, and are steps of a fixed size in evorl."
)
JOBS |= {
    "PPO on inverted_pendulum": of_workflow("ppo", PPO, PPO_NOTE),
    "PPO on swimmer": of_workflow("ppo_swimmer", PPO, PPO_NOTE, has_flags=True),
    "OpenES on swimmer": of_workflow("openes", OPENES.format(16, 100), RANDOM_STEPS, has_flags=True),
    "OpenES on swimmer, 32 individuals": of_workflow("openes_32", OPENES.format(32, 100), RANDOM_STEPS),
    "OpenES on swimmer, long episodes": of_workflow("openes_long", OPENES.format(16, "1,000"), RANDOM_STEPS),
    "TD3 on inverted_pendulum": of_workflow("td3", OFF_POLICY),
    "TD3 on swimmer": of_workflow("td3_swimmer", OFF_POLICY, has_flags=True),
    "SAC on inverted_pendulum": of_workflow("sac", OFF_POLICY),
    "SAC on swimmer": of_workflow("sac_swimmer", OFF_POLICY),
    "PBT on swimmer, 4 members": of_workflow("pbt_4", PBT.format(4), PBT_NOTE),
    "PBT on swimmer": of_workflow("pbt", PBT.format(8), PBT_NOTE),
    "PBT-CSO on swimmer": of_workflow(
        "pbt_cso", f"The worse of each random pair copies the other and moves towards it; {PBT.format(8)}", PBT_NOTE
    ),
    "CEM-RL on swimmer": of_workflow("cem_rl", f"{CEM_RL}, episodes of 100 steps", RANDOM_STEPS, has_flags=True),
    **{
        f"CEM-RL on {env}": of_workflow(
            name,
            f"{CEM_RL}; time limit of 1,000 steps, from scratch",
            f"EvoRL simulates all 1,000 steps; evorl stops when all episodes have ended. {RANDOM_STEPS}",
        )
        for env, name in (("inverted_pendulum", "cem_rl_long"), ("hopper", "cem_rl_hopper"))
    },
    "OpenES on CartPole, devices": on_devices(
        "openes",
        "512 individuals, policies of 64, 64; one episode per individual and generation",
        "generations",
        sizes=(512,),
        axis="population",
    ),
    "PPO on CartPole, 8 seeds, devices": on_devices(
        "seeds",
        f"8 seeds of PPO {SMALL_PPO}; the seeds of a device take turns",
        "env steps",
        sizes=(8,),
        axis="seeds",
    ),
    "PBT on swimmer, devices": on_devices("pbt", PBT.format(8), "iterations", sizes=(8,), axis="members"),
    "PPO on ant (spring), devices": on_devices(
        "ppo_ant",
        "16 steps per iteration, 4 epochs of 8 minibatches, networks of 256, 256",
        "env steps",
        "brax",
        sizes=(512,),
        axis="environments",
        note="evorl takes one device for a single training that learns by gradient, unless `devices=2` is given.",
        version=1,
    ),
    "MAP-Elites on the arm": Job(
        "qd",
        "MAP-Elites on the planar arm of 100 joints, 32 x 32 cells, batches of 128, iso 0.005, line 0.05, from scratch",
        "iterations",
        (Side("evorl", "map_elites"), Side("qdax", "map_elites")),
        sizes=(1_000,),
        axis="iterations",
        score="QD score of fitness + 1",
    ),
    "CMA-ME on the linear projection": Job(
        "qd",
        "CMA-ME on the sphere function of 100 numbers, whose descriptor is a linear projection, 100 x 100 cells, 15 "
        "searches of 36 individuals, step size 0.5, improvement ranking, from scratch",
        "iterations",
        (Side("evorl", "cma_me"), Side("pyribs", "cma_me")),
        sizes=(300,),
        axis="iterations",
        score="QD score",
        note="pyribs runs on NumPy and evaluates with NumPy.",
    ),
    "PGA-MAP-Elites on walker2d": Job(
        "qd",
        "PGA-MAP-Elites on walker2d with the feet contacts, 100 episodes of 100 steps (spring), 300 updates of the "
        "critics, 100 updates of each of 50 policies, batch 100, networks of 64, 64, 32 x 32 cells, replay buffer of "
        "100,000",
        "iterations",
        (Side("evorl", "pga_me"), Side("qdax", "pga_me")),
        sizes=(2,),
        axis="iterations",
        note="QDax simulates all 100 steps; evorl stops when all episodes have ended.",
    ),
    "Archive, adds of 1,024": Job(
        "qd",
        "Adds of 1,024 solutions of 100 numbers to a grid archive with two descriptors; fitness rises by 0.1 in each "
        "add",
        "adds",
        (Side("evorl", "archive"), Side("qdax", "archive"), Side("pyribs", "archive")),
        sizes=(1_000, 10_000, 100_000),
        axis="cells",
        note="QDax finds a cell by the distances to all centers. Sides do different numbers of adds in a round.",
    ),
    "PPO on CartPole": Job(
        "rl",
        "PPO, the training continues by 20,480 steps in each round, without evaluation and logging. 8 environments x "
        "32 steps, 20 epochs of one minibatch of 256, networks of 64, 64, constant learning rate and clip range",
        "env steps",
        (
            Side("evorl", "ppo", "CartPole in JAX"),
            Side("evorl", "ppo_host", "Gymnasium"),
            Side("sb3", "ppo"),
            Side("sb3", "ppo_sbx", "SBX"),
        ),
        note="CartPole in JAX is part of evorl's compiled program. The other sides step Gymnasium's, all 8 "
        "environments in one process.",
    ),
    "SAC on HalfCheetah-v5": Job(
        "rl",
        "SAC, the training continues by 500 steps in each round. 1 environment, one update of all networks with a "
        "batch of 256 after each step, networks of 256, 256, learned temperature, replay buffer of 1,000,000. Round "
        "0 has 1,000 random steps",
        "env steps",
        (Side("evorl", "sac"), Side("sb3", "sac"), Side("sb3", "sac_sbx", "SBX")),
        note="All sides simulate on MuJoCo's C engine.",
    ),
    "TD3 on Hopper-v5": Job(
        "rl",
        "TD3, the training continues by 500 steps in each round. 1 environment, one update of the critics with a "
        "batch of 256 for each step, one of the actor for two. Networks of 256, 256, replay buffer of 1,000,000. "
        "Round 0 has 1,000 random steps",
        "env steps",
        (Side("evorl", "td3"), Side("sb3", "td3"), Side("sb3", "td3_sbx", "SBX")),
        note="evorl takes two steps, then two updates; the others take one update after each step. All sides "
        "simulate on MuJoCo's C engine.",
    ),
    "DQN on CartPole": Job(
        "rl",
        "DQN for 10,000 steps from scratch, without evaluation. 10 environments, 5 updates with a batch of 100 after "
        "each step of all, networks of 64, 64. Replay buffer of 10,000, 1,000 random steps",
        "env steps",
        (
            Side("evorl", "dqn"),
            Side("rejax", "dqn"),
            Side("sb3", "dqn"),
            Side("sb3", "dqn_sbx", "SBX", in_summary=False),
        ),
        note="evorl and rejax step CartPole in JAX, in one compiled program. The others step Gymnasium's. evorl "
        "updates the target network after each update, the others after each step of all environments. "
        f"{COMPILES_AGAIN}",
    ),
    "DQN on CartPole, 64 seeds": Job(
        "rl",
        "As DQN on CartPole, 64 seeds in one program, for 4,000 steps of each",
        "env steps",
        (Side("evorl", "dqn_seeds"), Side("rejax", "dqn_seeds")),
        sizes=(64,),
        axis="seeds in one program",
    ),
    "PPO on CartPole to a return of 475": Job(
        "rl",
        "Time from scratch to a mean return of 475 in 10 greedy episodes, which are played every 2,048 steps, their "
        "time included. Settings of SB3's zoo: 8 environments x 32 steps, 20 epochs of one minibatch of 256, "
        "networks of 64, 64, discount 0.98, lambda 0.8, no entropy bonus. Learning rate and clip range fall from "
        "0.001 and 0.2 to 0 at 200,704 steps, where a training ends in any case",
        "env steps",
        (
            Side("evorl", "ppo_goal", "CartPole in JAX"),
            Side("evorl", "ppo_goal_host", "Gymnasium"),
            Side("sb3", "ppo_goal"),
            Side("sb3", "ppo_goal_sbx", "SBX", in_summary=False),
        ),
        rounds=8,
        score="mean return of the last 10 greedy episodes",
        goal=475,
        note="CartPole in JAX is part of evorl's compiled program. The initial weights differ: orthogonal in SB3, "
        f"uniform in evorl. {COMPILES_AGAIN}",
    ),
    "PPO on Hopper-v5 to a return of 1,000": Job(
        "rl",
        "Time from scratch to a mean return of 1,000 in 10 greedy episodes, or to 512,000 steps. Episodes are played "
        "every 10,240 steps, their time included. 8 environments x 256 steps, 10 epochs of minibatches of 64, "
        "networks of 64, 64. Learning rate 0.0003, no entropy bonus",
        "env steps",
        (Side("evorl", "ppo_hopper_goal"), Side("sb3", "ppo_hopper_goal"), Side("sb3", "ppo_hopper_goal_sbx", "SBX")),
        rounds=8,
        score="mean return of the last 10 greedy episodes",
        goal=1_000,
        note="The initial weights differ: orthogonal in SB3, uniform in evorl. All sides simulate on MuJoCo's C "
        "engine, and had one core.",
    ),
    "TD3 on HalfCheetah-v5 to a return of 300": Job(
        "rl",
        "Time from scratch to a mean return of 300 in 5 greedy episodes, which are played every 1,000 steps after the "
        "1,000 random ones, their time included. As TD3 on Hopper-v5, with SB3's learning rate of 0.001, and at most "
        "50,000 steps",
        "env steps",
        (Side("evorl", "td3_goal"), Side("sb3", "td3_goal"), Side("sb3", "td3_goal_sbx", "SBX")),
        rounds=8,
        score="mean return of the last 5 greedy episodes",
        goal=300,
        note="All sides simulate on MuJoCo's C engine, and had one core.",
        version=1,
    ),
    "SAC on HalfCheetah-v5 to a return of 1,000": Job(
        "rl",
        "Time from scratch to a mean return of 1,000 in 5 greedy episodes, which are played every 1,000 steps after "
        "the 1,000 random ones, their time included. As SAC on HalfCheetah-v5, with at most 50,000 steps",
        "env steps",
        (Side("evorl", "sac_goal"), Side("sb3", "sac_goal"), Side("sb3", "sac_goal_sbx", "SBX")),
        rounds=8,
        score="mean return of the last 5 greedy episodes",
        goal=1_000,
        note="All sides simulate on MuJoCo's C engine, and had one core.",
    ),
    "PBT of PPO on CartPole": Job(
        "tuning",
        "Population-based training of 8 members of PPO for 20,480 steps of each, from scratch. Every 4,096 steps, "
        "each member plays 10 greedy episodes, and copies of the best 2 replace the worst 2. They have another "
        "learning rate (0.0001 to 0.01) and clip range (0.1 to 0.4). 8 environments x 32 steps, 20 epochs of one "
        "minibatch of 256, networks of 64, 64",
        "env steps",
        (Side("evorl", "pbt_ppo"), Side("ray", "pbt_ppo")),
        rounds=3,
        score="mean return of the best member in the last 10 greedy episodes",
        note="Ray Tune trains PPO of Stable-Baselines3, two members at a time in a process each, and saves a "
        "checkpoint after each generation; its PBT is asynchronous. evorl trains all members in one program, on "
        "CartPole in JAX.",
    ),
    "PB2 of PPO on CartPole": Job(
        "tuning",
        "As PBT of PPO on CartPole, with PB2 in Ray Tune, which chooses the hyperparameters with a Gaussian process",
        "env steps",
        (Side("evorl", "pbt_ppo"), Side("ray", "pb2_ppo", "PB2")),
        rounds=3,
        score="mean return of the best member in the last 10 greedy episodes",
    ),
    "Search of PPO's settings on CartPole": Job(
        "tuning",
        "Search of PPO's learning rate (0.0001 to 0.01) and clip range (0.1 to 0.4): 16 trials of 10,240 steps with "
        "TPE, 10 of them random, without pruning. A trial's score is the mean return of 10 greedy episodes at its "
        "end. 8 environments x 32 steps, 20 epochs of one minibatch of 256, networks of 64, 64",
        "env steps",
        (
            Side("evorl", "search_ppo", "one trial at a time"),
            Side("evorl", "search_ppo_8", "8 trials at a time"),
            Side("optuna", "search_ppo"),
        ),
        rounds=3,
        score="mean return of the best trial in 10 greedy episodes",
        note="Optuna trains PPO of Stable-Baselines3, one trial after the other. evorl trains on CartPole in JAX; "
        "its TPE is Optuna's. With 8 trials at a time, TPE knows less.",
    ),
    "Evolution of DQN's learning rate on CartPole": Job(
        "tuning",
        "Population of 4 members of DQN with one replay buffer of 10,000, for 9,984 steps of each, from scratch. "
        "Every 2,496 steps, each member plays 8 greedy episodes, and tournaments of two choose who is copied; copies "
        "have other learning rates (0.0001 to 0.01). 8 environments, 4 updates with a batch of 64 after each step of "
        "all, networks of 64, 64, 64, double Q-learning",
        "env steps",
        (Side("evorl", "pbt_dqn"), Side("agilerl", "evolve_dqn")),
        rounds=3,
        score="mean return of the best member in the last 8 greedy episodes",
        note="AgileRL trains one member after the other on Gymnasium's CartPole, and its members begin with the "
        "learning rate 0.001. evorl trains all in one program, on CartPole in JAX, and draws the first learning "
        "rates. AgileRL's epsilon falls exponentially, evorl's linearly.",
    ),
}
