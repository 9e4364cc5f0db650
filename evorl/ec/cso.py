"""Competitive swarm optimizer (CSO)."""

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
    """Competitive swarm optimizer (CSO): particles compete in random pairs, and the loser moves towards the winner.

    The solution is the fittest particle of the last generation. The default of social is from section 4 of
    the paper for swarms of up to 100.

    Args:
        population_size: Number of particles, even, since they compete in pairs.

    Source: Cheng & Jin 2015, doi:10.1109/TCYB.2014.2322602, equations 6 and 7.
    """

    population_size: int = 128
    initial_std: Number = number(0.1, 0, about="standard deviation of the initial swarm around the initial parameters")
    social: Number = number(0.0, 0, 1, "phi: attraction of the losers to the mean of the swarm")

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
        """Return the swarm as parameters, leaves [n, ...]."""
        del key
        return state.swarm, state

    def tell(self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: CSOState) -> tuple[CSOState, Metrics]:
        """Move the losers by velocity <- r1 velocity + r2 (winner - loser) + social r3 (mean - loser).

        r1, r2 and r3 are drawn uniformly from [0, 1) for each parameter.
        """
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
