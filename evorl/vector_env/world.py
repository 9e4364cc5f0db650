"""Copies of one environment, all stepped at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl import tree
from evorl.errors import OptionError, require, unknown
from evorl.keys import require_key
from evorl.spaces import groups, shapes
from evorl.types import Env, Key, Level, Leveled, Memory, Ranks, Summarizes, TimeStep, Transition
from evorl.vector_env import hosts
from evorl.vector_env.episodes import SUMMARIES, EnvSlot

Policy = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]


@dataclass(frozen=True)
class World:
    """n copies of an environment with the same params, and the memory with which an episode begins.

    Of several devices each has n of `total`.
    """

    env: Env
    params: Any
    memory: Memory
    n: int
    shards: int = 1

    @property
    def total(self) -> int:
        """Copies on all devices."""
        return self.n * self.shards

    def reset(self, keys: Key) -> tuple[Any, Any]:
        """A start for each of keys [...], a state and an observation, leaves [..., ...]."""
        require_key(keys)
        if keys.ndim:
            return jax.vmap(self.reset)(keys)
        with jax.named_scope("environment"):
            return self.env.reset(keys, self.params)

    @property
    def hosted(self) -> bool:
        """Whether the environment lives on the host, where only those are touched that act or begin."""
        return hosts.params(self.params) is not None

    @property
    def batch(self) -> int:
        """For how many of its slots a step waits on the host; 0 for all."""
        host = hosts.params(self.params)
        return 0 if host is None else -(-min(host.batch, self.total) * self.n // self.total)

    def waits(self, slots: EnvSlot) -> Bool[Array, " n"]:
        """Which slots have sent an action to the host that has not been answered."""
        host = hosts.the(slots.env_state)
        return host.waits & (host.lease > 0)

    def reset_asked(self, keys: Key, asked: hosts.Asked) -> tuple[Any, Any]:
        """What reset answers on the host for keys [n], leaves [n, ...]."""
        with jax.named_scope("environment"):
            return jax.vmap(self.env.reset)(keys, asked.of(self.params))

    def reset_to(self, keys: Key, levels: Level) -> tuple[Any, Any]:
        """A start on each of levels, leaves [n, ...]; raises OptionError where the environment has none."""
        with jax.named_scope("environment"):
            return jax.vmap(leveled(self.env).reset_to)(keys, levels)

    @property
    def summary(self) -> dict[str, str]:
        """What of its info the environment summarizes, and how."""
        return dict(self.env.episode_info) if isinstance(self.env, Summarizes) else {}

    @property
    def ranked(self) -> str | None:
        """Of a game the group whose return ranks, "" for all; else None. Raises OptionError."""
        teams = groups(self.env.action_space)
        named = self.env.ranked if isinstance(self.env, Ranks) else ""
        if named and named not in teams:
            raise unknown("ranked", named, teams)
        return named if teams else None

    def timestep(self, env_state: Any) -> TimeStep:
        """What an action in a state, leaves [n, ...], is answered, by its shapes."""

        def one_step() -> TimeStep:
            keys = jax.random.split(jax.random.key(0), self.n)
            return self.step(keys, env_state, jax.vmap(self.env.action_space.sample)(keys))[1]

        return jax.eval_shape(one_step)

    def slots(self, starts: tuple[Any, Any]) -> EnvSlot:
        """The slots at starts, leaves [n, ...].

        Raises OptionError where an observation is not as declared, or a summary is of what is not there.
        """
        seen = self.timestep(starts[0])
        self._check("reset", starts[1])
        self._check("step", seen.obs)
        for name, how in self.summary.items():
            require(how in SUMMARIES, f"episode_info[{name!r}]", how, f"must be one of {', '.join(SUMMARIES)}")
            if name not in seen.info:
                raise unknown("episode_info", name, seen.info)
        learned = () if isinstance(seen.task_reward, tuple) else seen.reward
        none = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (seen.scored, seen.info, learned))
        info = {name: none[1][name] for name in self.summary}
        gone = () if seen.ends is None else tree.zeros(seen.ends.truncated)
        memory, length = tree.broadcast(self.memory, self.n), jnp.zeros(self.n, jnp.int32)
        return EnvSlot(*starts, memory, none[0], length, info, gone, learned_return=none[2])

    def _check(self, where: str, obs: Any) -> None:
        """Raises OptionError where observations, leaves [n, ...], are not of the shapes and dtypes declared."""
        found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), obs)
        for fault in tree.unlike(f"{where}: obs", found, shapes(self.env.observation_space)):
            raise OptionError(f"env={type(self.env).__name__}: {fault}, as its observation_space is")

    def restart(self, slots: EnvSlot, starts: tuple[Any, Any], where: Bool[Array, "*n"]) -> EnvSlot:
        """The slots, at starts, leaves [n, ...], where so, [n] or []."""
        none = tree.zeros((slots.episode_return, slots.episode_length, slots.episode_info, slots.gone))
        learned, memory = tree.zeros(slots.learned_return), tree.broadcast(self.memory, self.n)
        return tree.where(where, EnvSlot(*starts, memory, *none, slots.sent, learned), slots)

    def enter(self, first: tuple[Any, Any], slots: EnvSlot | None, where: Bool[Array, "*n"]) -> EnvSlot:
        """The slots, at first, leaves [n, ...], where so, [n] or []; all of them where there are no slots."""
        return self.slots(first) if slots is None else self.restart(slots, first, where)

    def interact(
        self, policy: Policy, slots: EnvSlot, keys: Key, asked: hosts.Asked | None = None
    ) -> tuple[EnvSlot, Transition]:
        """One step of all slots, keys [n]; episodes that end are left at their end. On the host as is asked.

        A slot there that waits takes the step that it has sent, and stays as it is but for that until it is answered.
        """
        key_act, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        with jax.named_scope("policy"):
            action, memory, extras = policy(slots.obs, slots.memory, key_act)
        sent = (action, memory, extras, jax.random.key_data(key_step)) if self.batch else ()
        if slots.sent:
            action, memory, extras, data = sent = tree.where(self.waits(slots), slots.sent, sent)
            key_step = jax.random.wrap_key_data(data)
        with jax.named_scope("environment"):
            env_state, timestep = self.step(key_step, slots.env_state, action, asked)
        outcome = timestep.reward, timestep.obs, timestep.terminated, timestep.truncated
        ends = () if timestep.ends is None else timestep.ends
        members = {"ends": ends, "gone": slots.gone}
        transition = Transition(slots.obs, action, *outcome, extras, memory=slots.memory, **members)
        returns, learned = jax.tree.map(jnp.add, slots.episode_return, timestep.scored), ()
        if not isinstance(slots.learned_return, tuple):
            learned = jax.tree.map(jnp.add, slots.learned_return, timestep.reward)
        info = {
            name: timestep.info[name].astype(jnp.float32) + (0 if how == "last" else slots.episode_info[name])
            for name, how in self.summary.items()
        }
        gone = ends if isinstance(ends, tuple) else ends.any
        after = EnvSlot(env_state, timestep.obs, memory, returns, slots.episode_length + 1, info, gone, sent, learned)
        if slots.sent:
            waiting = replace(slots, env_state=hosts.kept(slots.env_state, env_state), sent=sent)
            after = tree.where(self.waits(after), waiting, after)
        return after, transition

    def sending(self, policy: Policy, slots: EnvSlot) -> EnvSlot:
        """The slots, with room for what they send where it is not waited for."""
        if not self.batch or slots.sent:
            return slots
        keys = jax.random.split(jax.random.key(0), self.n)
        sent = jax.eval_shape(lambda: self.interact(policy, slots, keys)[0].sent)
        return replace(slots, sent=tree.zeros(sent))

    def step(self, keys: Key, env_state: Any, action: Any, asked: hosts.Asked | None = None) -> tuple[Any, TimeStep]:
        """env.step of all slots, leaves [n, ...]; on the host as is asked."""
        if not self.hosted:
            return jax.vmap(self.env.step, (0, 0, 0, None))(keys, env_state, action, self.params)
        asked = hosts.Asked(jnp.ones(self.n, bool)) if asked is None else asked
        return jax.vmap(self.env.step)(keys, env_state, action, asked.of(self.params))

    def lost(self, after: EnvSlot, transition: Transition) -> Bool[Array, " n"]:
        """Return which steps count nowhere, as a reward or an observation of theirs is NaN or infinite.

        Of environments on the host those without an answer, because the environment has failed.
        """
        if not self.hosted:
            return ~tree.finite_rows((transition.obs, transition.reward, transition.next_obs))
        return (hosts.leases(after.env_state) <= 0) & ~transition.ended

    def apart(self, slots: EnvSlot, leaves: Any) -> EnvSlot:
        """The slots; where so, [], without their leases, which others go on with."""
        return tree.where(jnp.asarray(leaves), hosts.without(slots), slots) if self.hosted else slots

    def left(self, slots: EnvSlot, leaves: Any) -> EnvSlot:
        """The slots, of which nothing on the host is kept where so, []."""
        if not self.hosted:
            return slots
        lease, leaves = hosts.leases(slots.env_state), jnp.asarray(leaves)
        keys = jax.random.split(jax.random.key(0), self.n)
        self.reset_asked(keys, hosts.Asked((lease != 0) & leaves, lease, leaves))
        return tree.where(leaves, hosts.without(slots), slots)

    def ended(self, slots: EnvSlot) -> tuple[Any, Any, Any, Any]:
        """The return, the length, the summary and the learned return of episodes that end here, leaves [n, ...]."""
        length = slots.episode_length
        info = {
            name: jax.vmap(jnp.divide)(total, length) if self.summary[name] == "mean" else total
            for name, total in slots.episode_info.items()
        }
        return slots.episode_return, length, info, slots.learned_return


def leveled(env: Env) -> Leveled:
    """The environment; raises OptionError where its episodes are not played on levels."""
    if not isinstance(env, Leveled):
        raise OptionError(f"env={type(env).__name__}: has no levels (evorl.types.Leveled)")
    return env
