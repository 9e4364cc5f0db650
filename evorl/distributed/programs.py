"""Programs that compute the tasks of PSRO, each compiled once."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from evorl import tree
from evorl.distributed import task as names
from evorl.distributed.task import BEST_RESPONSE, FetchFn, Task, Value
from evorl.distributed.values import pack_value, unpack_value
from evorl.leagues.oracles import DivisibleOracle, OracleInputs, OracleOutputs
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.psro import PSRO, PSROState
from evorl.leagues.roles import Role
from evorl.parts import bind
from evorl.training.devices import compiler_options
from evorl.types import Metrics, Numbers


@dataclass(frozen=True)
class PSROSpec:
    """Specification that all tasks of a PSRO training have in common."""

    psro: PSRO
    numbers: Numbers
    env_params: PyTree

    def build_programs(self) -> "PSROPrograms":
        return PSROPrograms(self)


class PSROPrograms:
    """Programs for the tasks of PSRO, which also keep the policies that they have read."""

    def __init__(self, spec: PSROSpec) -> None:
        self.spec, self.psro = spec, spec.psro
        compiled = partial(jax.jit, compiler_options=compiler_options())
        self._begun = compiled(lambda key: self.psro.init_without_payoffs(key, spec.numbers, spec.env_params))
        self._answer, self._cells = (
            compiled(self._compute_best_response, static_argnums=0),
            compiled(self._compute_payoffs),
        )
        self._place = compiled(tree.set_row, donate_argnums=0)
        self.weighed, self.answered = compiled(self._update_meta_strategy), compiled(self.psro.target_mixtures)
        self._held, self._pool = 0, None

    def init_state(self, key: jax.Array) -> PSROState:
        """Return the state with the initial policies, without payoffs."""
        return self._begun(key)

    @cached_property
    def state_shapes(self) -> PSROState:
        """Return the shapes of the state."""
        return self._begun.eval_shape(jax.random.key(0))

    @cached_property
    def policy_shapes(self) -> Any:
        """Return the shapes of the policies of one version."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.state_shapes.pool)

    def find_player_role(self, player: int) -> tuple[Role, int]:
        """Return the role of a player, and the index of the player within it."""
        roles = self.psro.roles
        role = roles.find_role(roles.players[player])
        return role, roles.get_player_indices(role).index(player)

    def get_response_shapes(self, player: int) -> OracleOutputs:
        """Return the shapes of a best response of a player."""
        shapes = self.state_shapes
        given = shapes.weights, shapes.pool, shapes.oracle_state, jax.random.key(0)
        return self._answer.eval_shape(self.find_player_role(player)[0], jnp.int32(0), jnp.int32(0), *given)

    def get_payoff_shapes(self, profiles: int) -> Any:
        """Return the shapes of the payoffs of `profiles` profiles, and of the counts of env steps and episodes."""
        given = jax.ShapeDtypeStruct((profiles, self.psro.roles.num_players), jnp.int32)
        return self._cells.eval_shape(jnp.int32(0), given, self.state_shapes.pool, jax.random.key(0))

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        count = task.version + (task.kind != BEST_RESPONSE)
        pool, key = self._load_policies(count, fetch), jax.random.wrap_key_data(jnp.asarray(task.key))
        if task.kind == BEST_RESPONSE:
            role, place = self.find_player_role(task.part)
            name = names.format_oracle_name(task.version - 1)
            oracle_state = unpack_value(self.state_shapes.oracle_state, fetch(name) if name in task.value_names else [])
            return pack_value(
                self._answer(role, jnp.int32(place), jnp.int32(count), task.payload, pool, oracle_state, key)
            )
        return pack_value(self._cells(jnp.int32(count), task.payload, pool, key))

    def _load_policies(self, count: int, fetch: FetchFn) -> Any:
        """Return the pool with at least `count` versions, of which those not read before are fetched."""
        if self._pool is None:
            self._pool = tree.zeros_like(self.state_shapes.pool)
        while self._held < count:
            value = unpack_value(self.policy_shapes, fetch(names.format_policies_name(self._held)))
            self._pool = self._place(self._pool, jnp.int32(self._held), value)
            self._held += 1
        return self._pool

    def _compute_best_response(
        self, role: Role, place: Any, count: Any, weights: Any, pool: Any, oracle_state: Any, key: Any
    ) -> OracleOutputs:
        psro, oracle = self.psro, bind(self.psro, self.spec.numbers, None).oracle
        assert isinstance(oracle, DivisibleOracle)
        rivals = OracleInputs(self.spec.env_params, self._mask_pool(count, pool), weights)
        return oracle.respond_for_player(psro.env, role, place, rivals, oracle_state, key)

    def _compute_payoffs(self, count: Any, profiles: Any, pool: Any, key: Any) -> tuple[Payoffs, Metrics]:
        return self.psro.evaluate_profiles(self._mask_pool(count, pool), self.spec.env_params, profiles, key)

    def _update_meta_strategy(self, state: PSROState, new: PSROState, spent: Metrics) -> tuple[PSROState, Metrics]:
        # the weights of the state may be those of an older version
        answered = replace(state, nash_conv=self.psro.compute_nash_conv(state))
        return self.psro.update_meta_strategy(answered, new, spent)

    def _mask_pool(self, count: Any, pool: Any) -> Any:
        """Return the first `count` policies of a pool, and zeros elsewhere, so that no result depends on others."""
        return tree.select(jnp.arange(self.psro.capacity) < count, pool, tree.zeros_like(pool))
