"""Competitive swarm optimizer (CSO)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import tree
from evorl.ec.flatten import BLOCK_NUMBERS, flatten_member, flatten_population, unflatten_population
from evorl.ec.noise import find_largest_divisor, normal
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
        mean = flatten_member(tree.mean(genomes))
        pairs = compete_in_pairs(key_pairs, fitness)
        block = find_largest_divisor(len(pairs[0]), max(BLOCK_NUMBERS // max(mean.size, 1), 1))
        count = len(pairs[0]) // block
        keys = jax.random.split(key_r, count) if count > 1 else key_r[None]

        def move(held: tuple[Params, Array], some: tuple[Key, Any]) -> tuple[tuple[Params, Array], Array]:
            (swarm, velocity), (key, (winner, loser)) = held, some
            better, worse = (flatten_population(tree.index(swarm, rows)) for rows in (winner, loser))
            r1, r2, r3 = jax.random.uniform(key, (3, *worse.shape))
            speed = r1 * velocity[loser] + r2 * (better - worse) + self.social * r3 * (mean - worse)
            moved = unflatten_population(worse + speed, state.solution)
            swarm = jax.tree.map(lambda x, new: x.at[loser].set(new, unique_indices=True), swarm, moved)
            return (swarm, velocity.at[loser].set(speed, unique_indices=True)), jnp.linalg.norm(speed, axis=-1)

        center = tree.index(genomes, sanitize_fitness(fitness).argmax())
        blocks = jax.tree.map(lambda x: x.reshape(count, block), pairs)
        (swarm, velocity), speeds = jax.lax.scan(move, (genomes, state.velocity), (keys, blocks))
        return CSOState(swarm, velocity, center), {"speed": speeds.mean()}

    def solution(self, state: CSOState) -> Params:
        return state.solution
