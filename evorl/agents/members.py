"""What agents of several members share: parameters that each has for itself, and what each learns from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.losses import TD_ERROR, mean_of_rows
from evorl.agents.train_state import LossFn, TrainState
from evorl.parts import Number
from evorl.spaces import Dict, Space, get_visible_obs, get_visible_space, groups, split_key
from evorl.types import Key, MemberEnds, Metrics, Params, Transition


@struct.dataclass
class TrainStates:
    """A TrainState for each group; of one whose members do not share theirs, leaves [members, ...]."""

    params: dict[str, Params]  # by group
    states_without_params: dict[str, TrainState]  # by group, what else a TrainState has
    unshared_groups: tuple[str, ...] = struct.field(pytree_node=False, default=())  # groups whose members do not share

    @classmethod
    def from_states(cls, states: dict[str, TrainState], unshared_groups: tuple[str, ...]) -> "TrainStates":
        """Those by group."""
        others = {name: replace(state, params=None) for name, state in states.items()}
        return cls({name: state.params for name, state in states.items()}, others, unshared_groups)

    @property
    def target_params(self) -> Params:
        """The targets of all, by group."""
        return {name: state.target_params for name, state in self.states_without_params.items()}

    def group_state(self, name: str) -> TrainState:
        """That of a group."""
        return replace(self.states_without_params[name], params=self.params[name])

    def map_groups(self, change: Callable[..., TrainState], *given: Params) -> "TrainStates":
        """change(state, *given) of each, where given is by group; of members that are apart one by one."""

        def change_group(name: str) -> TrainState:
            changed = jax.vmap(change) if name in self.unshared_groups else change
            return changed(self.group_state(name), *(x[name] for x in given))

        return TrainStates.from_states({name: change_group(name) for name in self.params}, self.unshared_groups)

    def reset_with_params(self, params: Params) -> "TrainStates":
        """Other params at their beginning, with targets where self has some."""
        return self.map_groups(lambda state, params: state.reset_with_params(params), params)

    def apply_gradients(
        self, loss: LossFn, learning_rate: Number, max_grad_norm: Number
    ) -> tuple["TrainStates", Metrics]:
        """A step of each on the gradient of one loss, which is clipped by the norm of its own part."""
        gradient, metrics = jax.grad(loss, has_aux=True)(self.params)
        step = lambda state, slope: state.optimizer_step(slope, learning_rate, max_grad_norm)  # noqa: E731
        return self.map_groups(step, gradient), metrics

    def polyak_update(self, tau: Number) -> "TrainStates":
        """All targets move to their params by the fraction tau."""
        return self.map_groups(lambda state: state.polyak_update(tau))


def init_member_params(make: Callable[[Key], Params], key: Key, n: int, shared: bool) -> Params:
    """Parameters for n members, leaves [n, ...], or the same for all where shared."""
    return make(key) if shared else jax.vmap(make)(split_key(key, n))


def vmap_members(apply: Callable[..., Any], shared: bool, axis: int) -> Callable[..., Any]:
    """apply(params, *given) for all members, whose leaves lie along an axis of what is given and of the result."""
    over = None if shared else 0, axis

    def apply_members(params: Params, *given: Any) -> Any:
        return jax.vmap(lambda params, given: apply(params, *given), over, axis)(params, given)

    return apply_members


def joint_observation_space(space: Space) -> Dict:
    """The space of what all members of a game see."""
    return Dict({name: replace(of, space=get_visible_space(of.space)) for name, of in groups(space).items()})


def joint_observation(space: Space, obs: Any) -> dict[str, Any]:
    """What all members see of observations of a game, a value of joint_observation_space."""
    return {name: get_visible_obs(of.space, obs[name]) for name, of in groups(space).items()}


def repeat_for_members(x: Any, axes: int, n: int) -> Any:
    """What all n members have in common, leaves [*batch, ...], for each of them, leaves [*batch, n, ...]."""
    return jax.tree.map(lambda x: jnp.repeat(jnp.expand_dims(x, axes), n, axes), x)


def member_transitions(t: Transition, name: str, n: int) -> Transition:
    """What the n members of a group learn from, leaves [*batch, n, ...], of steps of the game, [*batch].

    Who is out of the game for good is terminated or truncated then, and from the next step on gone.
    """
    axes = t.terminated.ndim
    terminated, truncated = (repeat_for_members(x, axes, n) for x in (t.terminated, t.truncated))
    gone = None
    if t.member_ends is not None:
        gone, own = t.members_done[name], (t.member_ends.terminated[name], t.member_ends.truncated[name])
        terminated, truncated = MemberEnds.merge_game_end((terminated, truncated), own, gone)
    return replace(
        t,
        obs=t.obs[name],
        next_obs=t.next_obs[name],
        action=t.action[name],
        reward=t.reward[name],
        terminated=terminated,
        truncated=truncated,
        member_ends=None,
        members_done=gone,
        discount=repeat_for_members(t.discount, axes, n),
        weight=repeat_for_members(t.weight, 1, n),
        extras=t.extras.get(name, {}),
        memory=t.memory[name] if t.memory else None,
    )


def sum_member_means(weight: Any, of_each: Float[Array, "*batch members"], shared: bool) -> Float[Array, ""]:
    """The sum over members of their mean over rows, or the mean over the rows of all where they share what learns."""
    if shared:
        return mean_of_rows(weight, of_each)
    members = of_each.shape[-1]
    return jax.vmap(mean_of_rows, 1)(*jax.tree.map(lambda x: x.reshape(-1, members), (weight, of_each))).sum()


def merge_group_metrics(found: dict[str, Metrics], several: bool | None = None) -> Metrics:
    """The metrics of groups under names of their own, "NAME/GROUP" where there are several; errors of rows as means."""
    several = len(found) > 1 if several is None else several
    metrics = {f"{key}/{name}" if several else key: x for name, of in found.items() for key, x in of.items()}
    errors = [of[TD_ERROR] for of in found.values() if TD_ERROR in of]
    metrics = {key: x for key, x in metrics.items() if key.partition("/")[0] != TD_ERROR}
    return metrics | ({TD_ERROR: jnp.stack(errors).mean(0)} if errors else {})
