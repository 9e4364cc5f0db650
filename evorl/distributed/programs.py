"""What computes tasks: PSRO's own functions, each compiled once."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.distributed import task as names
from evorl.distributed.task import BEST_RESPONSE, Fetch, Task, Value
from evorl.distributed.values import packed, unpacked
from evorl.leagues.oracles import Answers, Divides, Rivals
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.roles import Role
from evorl.training.devices import compiler_options
from evorl.types import Metrics
from evorl.workflows.psro import PSRO, PSROState


@dataclass(frozen=True)
class PSROSpec:
    """What all tasks of a training of PSRO have in common."""

    psro: PSRO
    hyperparams: Any
    env_params: Any

    def programs(self) -> "PSROPrograms":
        return PSROPrograms(self)


class PSROPrograms:
    """Computes tasks of PSRO, and holds the policies that it has seen."""

    def __init__(self, spec: PSROSpec) -> None:
        self.spec, self.psro = spec, spec.psro
        compiled = partial(jax.jit, compiler_options=compiler_options())
        self._begun = compiled(lambda key: self.psro.begun(key, spec.hyperparams, spec.env_params))
        self._answer, self._cells = compiled(self._answered, static_argnums=0), compiled(self._paid)
        self._place = compiled(tree.put, donate_argnums=0)
        self.weighed, self.answered = compiled(self._weighed), compiled(self.psro.answered)
        self._held, self._pool = 0, None

    def begun(self, key: jax.Array) -> PSROState:
        """The state with the policies that the pool begins with, before anything was paid."""
        return self._begun(key)

    @cached_property
    def shapes(self) -> PSROState:
        """Of the state."""
        return self._begun.eval_shape(jax.random.key(0))

    @cached_property
    def policies(self) -> Any:
        """The shapes of the policies of one version."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.shapes.pool)

    def role(self, player: int) -> tuple[Role, int]:
        """The role of a player, and its place there."""
        roles = self.psro.roles
        role = roles.role(roles.players[player])
        return role, roles.numbers(role).index(player)

    def answer(self, player: int) -> Answers:
        """The shapes of an answer."""
        shapes = self.shapes
        given = shapes.weights, shapes.pool, shapes.rest, jax.random.key(0)
        return self._answer.eval_shape(self.role(player)[0], jnp.int32(0), jnp.int32(0), *given)

    def paid(self, profiles: int) -> Any:
        """The shapes of the payoffs of so many profiles, and of what was played for them."""
        given = jax.ShapeDtypeStruct((profiles, self.psro.roles.num_players), jnp.int32)
        return self._cells.eval_shape(jnp.int32(0), given, self.shapes.pool, jax.random.key(0))

    def __call__(self, task: Task, fetch: Fetch) -> Value:
        count = task.version + (task.kind != BEST_RESPONSE)
        pool, key = self._with(count, fetch), jax.random.wrap_key_data(jnp.asarray(task.key))
        if task.kind == BEST_RESPONSE:
            role, place = self.role(task.part)
            name = names.rest(task.version - 1)
            rest = unpacked(self.shapes.rest, fetch(name) if name in task.reads else [])
            return packed(self._answer(role, jnp.int32(place), jnp.int32(count), task.given, pool, rest, key))
        return packed(self._cells(jnp.int32(count), task.given, pool, key))

    def _with(self, count: int, fetch: Fetch) -> Any:
        """The pool with at least so many versions."""
        if self._pool is None:
            self._pool = tree.zeros(self.shapes.pool)
        while self._held < count:
            value = unpacked(self.policies, fetch(names.policies(self._held)))
            self._pool = self._place(self._pool, jnp.int32(self._held), value)
            self._held += 1
        return self._pool

    def _answered(self, role: Role, place: Any, count: Any, weights: Any, pool: Any, rest: Any, key: Any) -> Answers:
        psro, oracle = self.psro, self.psro.oracle
        assert isinstance(oracle, Divides)
        rivals = Rivals(self.spec.env_params, self._first(count, pool), weights)
        return oracle.answer(psro.env, role, place, rivals, rest, key, self.spec.hyperparams.oracle)

    def _paid(self, count: Any, profiles: Any, pool: Any, key: Any) -> tuple[Payoffs, Metrics]:
        return self.psro.cells(self._first(count, pool), self.spec.env_params, profiles, key)

    def _weighed(self, state: PSROState, new: PSROState, spent: Metrics) -> tuple[PSROState, Metrics]:
        answered = replace(state, nash_conv=self.psro.exploited(state))  # of weights that may be older
        return self.psro.weighed(answered, new, spent)

    def _first(self, count: Any, pool: Any) -> Any:
        """A pool of its first policies alone, so that nothing depends on what else was seen."""
        return tree.where(jnp.arange(self.psro.capacity) < count, pool, tree.zeros(pool))
