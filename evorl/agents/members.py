"""Functions and states that the multi-agent agents share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.losses import TD_ERROR, mean_of_rows, mse_critic_loss
from evorl.agents.train_state import LossFn, TrainState
from evorl.parts import Number
from evorl.spaces import Dict, Space, get_visible_obs, get_visible_space, groups, split_key
from evorl.types import Key, MemberEnds, Metrics, Params, Transition


@struct.dataclass
class TrainStates:
    """One TrainState for each group; leaves [members, ...] if the members of the group do not share parameters."""

    params: dict[str, Params]  # by group
    states_without_params: dict[str, TrainState]  # by group: the TrainState without its params
    unshared_groups: tuple[str, ...] = struct.field(pytree_node=False, default=())  # groups with separate parameters

    @classmethod
    def from_states(cls, states: dict[str, TrainState], unshared_groups: tuple[str, ...]) -> "TrainStates":
        """Create the train states from a dict of them by group."""
        others = {name: replace(state, params=None) for name, state in states.items()}
        return cls({name: state.params for name, state in states.items()}, others, unshared_groups)

    @property
    def target_params(self) -> Params:
        """Return the target parameters by group."""
        return {name: state.target_params for name, state in self.states_without_params.items()}

    def group_state(self, name: str) -> TrainState:
        """Return the train state of a group."""
        return replace(self.states_without_params[name], params=self.params[name])

    def map_groups(self, change: Callable[..., TrainState], *given: Params) -> "TrainStates":
        """Apply change(state, *given) to the train state of each group; the arguments `given` are by group.

        If the members of a group have separate parameters, `change` is applied to each member (vmap).
        """

        def change_group(name: str) -> TrainState:
            changed = jax.vmap(change) if name in self.unshared_groups else change
            return changed(self.group_state(name), *(x[name] for x in given))

        return TrainStates.from_states({name: change_group(name) for name in self.params}, self.unshared_groups)

    def reset_with_params(self, params: Params) -> "TrainStates":
        """Return fresh train states with other parameters, with target parameters if self has them."""
        return self.map_groups(lambda state, params: state.reset_with_params(params), params)

    def apply_gradients(
        self, loss: LossFn, learning_rate: Number, max_grad_norm: Number
    ) -> tuple["TrainStates", Metrics]:
        """Take one optimizer step per train state on the gradient of one loss; each gradient is clipped separately."""
        gradient, metrics = jax.grad(loss, has_aux=True)(self.params)
        step = lambda state, slope: state.optimizer_step(slope, learning_rate, max_grad_norm)  # noqa: E731
        return self.map_groups(step, gradient), metrics

    def polyak_update(self, tau: Number) -> "TrainStates":
        """Move all target parameters towards the parameters by the fraction tau."""
        return self.map_groups(lambda state: state.polyak_update(tau))


def init_member_params(make: Callable[[Key], Params], key: Key, n: int, shared: bool) -> Params:
    """Initialize the parameters of n members, leaves [n, ...], or one set of parameters if they are shared."""
    return make(key) if shared else jax.vmap(make)(split_key(key, n))


def vmap_members(apply: Callable[..., Any], shared: bool, axis: int) -> Callable[..., Any]:
    """Vectorize apply(params, *given) over the members, which lie along `axis` of the inputs and of the result."""
    over = None if shared else 0, axis

    def apply_members(params: Params, *given: Any) -> Any:
        return jax.vmap(lambda params, given: apply(params, *given), over, axis)(params, given)

    return apply_members


def joint_observation_space(space: Space) -> Dict:
    """Return the space of the joint observation of all members."""
    return Dict({name: replace(of, space=get_visible_space(of.space)) for name, of in groups(space).items()})


def joint_observation(space: Space, obs: Any) -> dict[str, Any]:
    """Return the joint observation of all members, a value of joint_observation_space."""
    return {name: get_visible_obs(of.space, obs[name]) for name, of in groups(space).items()}


def repeat_for_members(x: Any, axes: int, n: int) -> Any:
    """Repeat values that n members have in common, leaves [*batch, ...], to leaves [*batch, n, ...]."""
    return jax.tree.map(lambda x: jnp.repeat(jnp.expand_dims(x, axes), n, axes), x)


def member_transitions(t: Transition, name: str, n: int) -> Transition:
    """Return the transitions of the n members of a group, leaves [*batch, n, ...], from those of the environment.

    A member that leaves the episode for good is terminated or truncated at that step, and is in
    `members_done` from the next step on.
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
    """Return the sum over members of their means over rows; if they share parameters, the mean over all rows."""
    if shared:
        return mean_of_rows(weight, of_each)
    members = of_each.shape[-1]
    return jax.vmap(mean_of_rows, 1)(*jax.tree.map(lambda x: x.reshape(-1, members), (weight, of_each))).sum()


def member_critic_loss(
    t: Transition, value: Float[Array, "*batch n critics"], target: Float[Array, "*batch n"], shared: bool = False
) -> tuple[Float[Array, ""], Metrics]:
    """Return `mse_critic_loss` of the members of a group.

    Args:
        t: Transitions of the members.
        value: Values of the critics.
        target: Targets of the values.
        shared: Whether the members share a critic. If not, the loss is the sum of the losses of the members,
            each a mean over its own rows.
    """
    loss, metrics = mse_critic_loss(t, value, target)
    if shared:
        return loss, metrics
    squares = ((value - target[..., None]) ** 2).sum(-1)
    squares = squares if t.weight is None else t.weight * squares
    active = None if t.members_done is None else ~t.training_steps.members_done
    return sum_member_means(active, squares, shared), metrics


def merge_group_metrics(found: dict[str, Metrics], several: bool | None = None) -> Metrics:
    """Merge the metrics of the groups, as "NAME/GROUP" if there are several, and average the TD errors over groups."""
    several = len(found) > 1 if several is None else several
    metrics = {f"{key}/{name}" if several else key: x for name, of in found.items() for key, x in of.items()}
    errors = [of[TD_ERROR] for of in found.values() if TD_ERROR in of]
    metrics = {key: x for key, x in metrics.items() if key.partition("/")[0] != TD_ERROR}
    return metrics | ({TD_ERROR: jnp.stack(errors).mean(0)} if errors else {})
