"""The jobs of the comparison: what is done, at which sizes, and which libraries do it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library and what pip installs of it; nothing for evorl, which runs in the environment of this script."""

    title: str
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One implementation of a job, in the file TOPIC_LIBRARY.py of sides/.

    Args:
        library: Name in LIBRARIES.
        job: Name of the job in the file.
        variant: What distinguishes it from another side of the same library.
    """

    library: str
    job: str
    variant: str = ""

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
        note: Where a side does other or less work.
    """

    topic: str
    what: str
    unit: str
    sides: tuple[Side, ...]
    sizes: tuple[int, ...] = (0,)
    axis: str = ""
    rounds: int = 5
    score: str = ""
    note: str = ""


LIBRARIES = {
    "evorl": Library("evorl"),
    "rejax": Library("rejax", ("rejax==0.1.3", "gymnax==0.0.9")),
}
JOBS = {
    "PPO on CartPole, seeds": Job(
        "rl",
        "PPO for 100,000 steps (5,000 with 64 seeds) without evaluation, 5 environments x 100 steps, 5 epochs of 5 "
        "minibatches, networks of 64, 64",
        "env steps",
        (Side("evorl", "ppo_seeds"), Side("rejax", "ppo_seeds")),
        sizes=(1, 64),
        axis="seeds in one program",
    ),
}
