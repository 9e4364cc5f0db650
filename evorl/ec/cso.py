"""The competitive swarm optimizer."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import tree
from evorl.ec.flatten import flatten_member, flatten_population, unflatten_population
from evorl.ec.noise import normal
from evorl.ec.shaping import compete_in_pairs, sanitize_fitness
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.types import Evolver, Key, Metrics, Params


@struct.dataclass
class CSOState:
    swarm: Params  # leaves [n, ...]
    velocity: Float[Array, "n parameters"]
    solution: Params


@part
class CSO(Evolver):
    """Members meet in random pairs; who loses learns from who wins (Cheng & Jin 2015, doi:10.1109/TCYB.2014.2322602).

    Equations 6 and 7. The center is the fittest member of the last generation. Default of social: Cheng & Jin 2015,
    section 4, for swarms of up to 100.
    """

    population_size: int = 128
    initial_std: Number = number(0.1, 0, about="of the first swarm around the initial parameters")
    social: Number = number(0.0, 0, 1, "pull of the swarm's mean on those that lose (phi)")

    def __post_init__(self) -> None:
        n = self.population_size
        require_int("population_size", n, 2)
        require(n % 2 == 0, "population_size", n, "must be even: members compete in pairs")

    def init(self, key: Key, mean: Params) -> CSOState:
        first = flatten_member(mean)
        noise = normal(key, (self.population_size, first.size))
        swarm = unflatten_population(first + self.initial_std * noise, mean)
        return CSOState(swarm, jnp.zeros_like(noise), mean)

    def ask(self, key: Key, state: CSOState) -> tuple[Params, CSOState]:
        """Members as parameters, leaves [n, ...]."""
        del key
        return state.swarm, state

    def tell(self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: CSOState) -> tuple[CSOState, Metrics]:
        """velocity <- r1 velocity + r2 (winner - loser) + social r3 (mean - loser), with r in [0, 1) each number's."""
        key_pairs, key_r = jax.random.split(key)
        swarm = flatten_population(genomes)
        winner, loser = compete_in_pairs(key_pairs, fitness)
        r1, r2, r3 = jax.random.uniform(key_r, (3, len(loser), swarm.shape[1]))
        velocity = r1 * state.velocity[loser] + r2 * (swarm[winner] - swarm[loser])
        velocity += self.social * r3 * (swarm.mean(0) - swarm[loser])
        moved = unflatten_population(swarm.at[loser].add(velocity), state.solution)
        speed = jnp.linalg.norm(velocity, axis=-1).mean()
        center = tree.index(genomes, sanitize_fitness(fitness).argmax())
        return CSOState(moved, state.velocity.at[loser].set(velocity), center), {"speed": speed}

    def solution(self, state: CSOState) -> Params:
        return state.solution
