"""An on-policy agent: a stochastic policy and a value, which learn by the losses of an objective."""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from evorl import hyperparameters, tree
from evorl.agents.losses import OF_ROWS, chooses
from evorl.agents.memory import remembers
from evorl.agents.ppo import PPO
from evorl.agents.train_state import ADAM, Loss, Optimizer, TrainState
from evorl.errors import require, require_whole
from evorl.networks.distributions import Distribution, Head, one_choice
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder, Network
from evorl.networks.policy_value import Centralized, PolicyAlone, PolicyValue, masked_policy
from evorl.returns import is_known, through
from evorl.spaces import Privileged, Space, has_choice, showing, visible
from evorl.types import Batch, Hyperparams, Key, Memory, Metrics, Params, Transition


@runtime_checkable
class Objective(Protocol):
    """What is to be learned, as equations on arrays that know no network."""

    def targets(
        self,
        transitions: Transition,
        ratio: Array,
        value: Array,
        next_value: Array,
        hyperparams: Hyperparams,
    ) -> tuple[Array, Array]:
        """Of one trajectory [num_steps], the advantages and the value's targets; ratio is policy over behaviour."""
        ...

    def loss(
        self, batch: Batch, log_prob: Array, value: Array, entropy: Array, hyperparams: Hyperparams
    ) -> tuple[Array, Metrics]:
        """The loss [] on rows of a batch; log_prob, value and entropy [rows] are those of the policy that learns."""
        ...

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool | Array:
        """Whether to leave out the epochs still to come, from the metrics of the last one."""
        ...


@struct.dataclass
class PolicyGradientState:
    actor: TrainState  # policy and value; it has no target


@dataclass(frozen=True)
class PolicyGradient:
    """A policy and a value with the objective PPO, A2C or IMPALA.

    Without hidden layers both are linear. Real actions are drawn from the distribution named, whose standard deviations
    are parameters. Of num_values values, each with a network of its own and the same targets, the mean is the value.
    """

    observation_space: Space
    action_space: Space
    objective: Objective = field(default_factory=PPO)
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "tanh"
    shared_trunk: bool = False
    num_values: int = 1
    distribution: str = "tanh_normal"
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        require_whole("num_values", self.num_values)
        Head(self.action_space, self.distribution)
        if isinstance(visible(self.observation_space), Privileged):
            why = "must be 1 where the value sees what the policy may not"
            require(self.num_values == 1, "num_values", self.num_values, why)

    def hyperparams(self) -> Hyperparams:
        return hyperparameters.of(self.objective)

    @property
    def head(self) -> Head:
        """From the numbers of the policy to a distribution, and from its samples to actions."""
        return Head(self.action_space, self.distribution)

    @property
    def network(self) -> Network | Centralized:
        """The numbers of the distribution and a value, or several, from observations."""
        space, sizes = self.observation_space, (self.head.size, self.head.num_stds, self.hidden, self.activation)
        match visible(space):
            case Privileged(space=own, state=state):
                policy = Network(showing(space, own), PolicyAlone(*sizes), self.encoder, self.core)
                value = Network(state, MLP(self.hidden, 1, self.activation), self.encoder, self.core)
                return Centralized(space, policy, value)
        body = PolicyValue(*sizes, self.shared_trunk, self.num_values)
        return Network(space, body, self.encoder, self.core, masked_policy)

    def init(self, key: Key, hyperparams: Hyperparams) -> PolicyGradientState:
        del hyperparams
        params = self.network.fresh(key)
        return PolicyGradientState(TrainState.fresh(params, follows=False, optimizer=self.optimizer))

    def memory(self) -> Memory:
        twice = isinstance(visible(self.observation_space), Privileged)
        return (self.core.initial(), self.core.initial()) if twice else self.core.initial()

    @property
    def remembers(self) -> bool:
        """Whether it has a memory."""
        return remembers(self)

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """An action drawn from the policy; extras hold the sample that it comes from, and what the network gave."""
        del hyperparams
        memory, outputs = self.outputs("step", params, memory, obs)
        sample = self.policy(outputs)[0].sample(key)
        return self.head.action(sample), memory, {"sample": sample, "outputs": outputs}

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        del key, hyperparams
        memory, outputs = self.outputs("step", params, memory, obs)
        sample = self.policy(outputs)[0].mode()
        return self.head.action(sample), memory, {"sample": sample, "outputs": outputs}

    def probabilities(self, params: Params, obs: Any, hyperparams: Hyperparams) -> Float[Array, " choices"]:
        del hyperparams
        return one_choice(self.apply(params, obs)[0]).probs()

    def outputs(self, method: str, params: Params, *args: Any) -> Any:
        """What a method of the network gives."""
        return self.network.apply(params, *args, method=method)

    def policy(self, outputs: tuple[Array, Array, Array]) -> tuple[Distribution, Array]:
        """The distribution of samples and the value, or the values, from what the network gives."""
        numbers, log_std, value = outputs
        return self.head.distribution(numbers, log_std), value

    def mean(self, value: Array) -> Float[Array, "*batch"]:
        """The value: the mean of several."""
        return value.mean(-1) if self.num_values > 1 else value

    def apply(self, params: Params, obs: Any, memory: Memory | None = None) -> tuple[Distribution, Array]:
        """What policy gives for observations with a memory each, leaves [steps, slots, ...].

        A batch of any shape where nothing is remembered.
        """
        memory = self.memory() if memory is None else memory
        return self.policy(self.outputs("step", params, memory, obs)[1])

    def along(
        self, params: Params, obs: Any, memory: Memory, ended: Bool[Array, "steps slots"]
    ) -> tuple[Memory, Distribution, Array]:
        """Of observations, leaves [steps, slots, ...], that began with memory, leaves [slots, ...]: the memory after
        each, the distribution of samples and the value, or the values.
        """
        memories, outputs = self.outputs("sequence", params, memory, obs, ended)
        return memories, *self.policy(outputs)

    def batch(self, params: Params, transitions: Transition, hyperparams: Hyperparams, fresh: bool) -> Batch:
        """What the losses take, leaves [num_steps, num_envs, ...]; where fresh, params are those that acted."""
        t = transitions
        acted = self.policy(t.extras["outputs"])
        memory, (policy, values) = t.memory, acted
        if not fresh:
            first = tree.index(t.memory, 0)
            memories, policy, values = self.along(params, t.obs, first, t.ended)
            begun = tree.where(t.ended, tree.broadcast(self.memory(), *t.ended.shape), memories)
            memory = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs[:-1]]), first, begun)
        value, log_prob = self.mean(values), acted[0].log_prob(t.extras["sample"])
        beyond = self.beyond(params, replace(t, memory=memory))
        ratio = jnp.exp(policy.log_prob(t.extras["sample"]) - log_prob)
        advantage, target = self.targets(t, ratio, value, beyond, hyperparams)
        choice = self.choices(t)
        weight = (choice[0] & choice[1]).astype(jnp.float32) if choice else ()
        of_memory = (t.ended, t.memory) if self.remembers else ((), ())
        several = values if self.num_values > 1 else ()
        known = log_prob, value, advantage, target
        more = {"values": several, "ratio": ratio, "beyond": beyond, "weight": weight}
        return Batch(t.obs, t.extras["sample"], *known, *of_memory, **more)

    def choices(self, t: Transition) -> tuple[()] | tuple[Bool[Array, "steps slots"], Bool[Array, "steps slots"]]:
        """Of which steps there was a choice, and what follows of which is known; () where there always is one."""
        choice, following = chooses(self.observation_space, t), has_choice(self.observation_space, t.next_obs)
        if isinstance(choice, tuple):
            return ()
        following = jnp.ones_like(choice) if isinstance(following, tuple) else following
        return choice, jax.vmap(is_known, 1, 1)(t.terminated, _cut(t), choice, following)

    def targets(
        self,
        transitions: Transition,
        ratio: Float[Array, "steps slots"],
        value: Float[Array, "steps slots"],
        beyond: Float[Array, "steps slots"],
        hyperparams: Hyperparams,
    ) -> tuple[Float[Array, "steps slots"], Float[Array, "steps slots"]]:
        """The objective's advantages and targets; beyond is the value of a successor that is not the next step.

        A step without a choice has no advantage; what it earns counts for the last choice before it (returns.through).
        """
        t = replace(transitions, reward=hyperparams.reward_scale * transitions.reward)
        next_value, choice = jnp.where(_cut(t), beyond, jnp.roll(value, -1, 0)), self.choices(t)
        if choice:
            steps = t.reward, value, beyond, t.terminated, _cut(t), *choice
            changed = jax.vmap(through, (*(1,) * len(steps), None), 1)(*steps, hyperparams.discount)
            t, value, next_value = replace(t, reward=changed[0]), *changed[1:]
        targets = jax.vmap(self.objective.targets, (1, 1, 1, 1, None), 1)
        advantage, target = targets(t, ratio, value, next_value, hyperparams)
        return advantage * (choice[0] & choice[1]) if choice else advantage, target

    def beyond(self, params: Params, t: Transition) -> Float[Array, "steps slots"]:
        """The values of successors where time ran out, and after the last step; elsewhere 0.

        The network is asked for one such step of every slot at a time.
        """
        cut = _cut(t)
        place = jnp.cumsum(cut, 0) * cut - 1  # of each such step among those of its slot
        slots = jnp.arange(cut.shape[1])

        def ask(i: Array, found: Array) -> Array:
            step = jnp.argmax(place == i, 0)
            now = jax.tree.map(lambda x: x[step, slots], (t.obs, t.memory, t.next_obs))
            after = self.outputs("step", params, now[1], now[0])[0]
            asked = self.mean(self.apply(params, now[2], after)[1])
            return jnp.where(place == i, asked, found)

        return jax.lax.fori_loop(0, place.max() + 1, ask, jnp.zeros_like(t.reward))

    def loss(self, params: Params, batch: Batch, hyperparams: Hyperparams) -> tuple[Array, Metrics]:
        """That of the objective on segments of a batch, leaves [segments, steps, ...]."""
        segments, steps = batch.log_prob.shape
        if self.remembers:
            memory = batch.memory
            batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), replace(batch, memory=()))
            _, policy, value = self.along(params, batch.obs, memory, batch.ended)
            batch, log_prob, value, entropy = tree.merge_axes(
                (batch, policy.log_prob(batch.sample), value, policy.entropy())
            )
        else:
            batch = tree.merge_axes(batch)
            policy, value = self.apply(params, batch.obs)
            log_prob, entropy = policy.log_prob(batch.sample), policy.entropy()
        if self.num_values == 1:
            loss, metrics = self.objective.loss(batch, log_prob, value, entropy, hyperparams)
            of_rows = jax.lax.stop_gradient((value, jnp.exp(log_prob - batch.log_prob)))
            place = lambda x: x.reshape(steps, segments).T if self.remembers else x.reshape(segments, steps)  # noqa: E731
            return loss, metrics | dict(zip(OF_ROWS, map(place, of_rows), strict=True))

        def of_one(value: Array, before: Array) -> tuple[Array, Metrics]:
            return self.objective.loss(replace(batch, value=before), log_prob, value, entropy, hyperparams)

        return tree.mean(jax.vmap(of_one, -1)(value, batch.values))

    def update(
        self, state: PolicyGradientState, loss: Loss, hyperparams: Hyperparams
    ) -> tuple[PolicyGradientState, Metrics]:
        actor, metrics = state.actor.descend(loss, hyperparams.learning_rate, hyperparams.max_grad_norm)
        return replace(state, actor=actor), metrics

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool | Array:
        return self.objective.early_stop(metrics, hyperparams)


def _cut(t: Transition) -> Bool[Array, "steps slots"]:
    """Where what follows a step is not the next one, and is worth something."""
    return t.truncated.at[-1].set(True)
