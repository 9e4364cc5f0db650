"""Returns and advantages. Each function takes one trajectory, [num_steps]; the caller vmaps it.

An episode that ends within the trajectory cuts the sums. `next_value` is the value of the true successor of
each step. It is used unless the episode terminated at the step, so it is also used if the episode was
truncated.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl.parts import Number

Steps = Float[Array, " steps"]
Flags = Bool[Array, " steps"]
SLOPE = 1e-3  # slope of rescale_value for large values


def gae(
    reward: Steps,
    value: Steps,
    next_value: Steps,
    terminated: Flags,
    ended: Flags,
    discount: Number,
    decay: Number,
) -> Steps:
    """Compute the generalized advantage estimates, with decay = lambda.

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16.
    """
    error = reward + discount * ~terminated * next_value - value
    return _accumulate(error, discount * decay * ~ended)


def n_step_return(reward: Any, steps: Int[Array, ""], discount: Number) -> tuple[Any, Float[Array, ""]]:
    """Return the discounted sum of rewards, and the discount of the value of the last successor.

    The rewards are an array [steps], or a pytree with leaves [..., steps], and must be 0 from index `steps`
    on.
    """

    def total(x: Array) -> Array:
        return (discount ** jnp.arange(x.shape[-1]) * x).sum(-1)

    return jax.tree.map(total, reward), jnp.float32(discount) ** steps


def vtrace(
    reward: Steps,
    value: Steps,
    next_value: Steps,
    terminated: Flags,
    ended: Flags,
    ratio: Steps,
    discount: Number,
    decay: Number,
    max_rho: Number,
    max_c: Number,
) -> tuple[Steps, Steps]:
    """Return the V-trace value targets and the policy-gradient advantages.

    `ratio` is pi(a|s) / mu(a|s). The targets follow equation 1 with c = decay * min(max_c, ratio). The
    advantages follow section 4.2: rho (r + discount v' - V), where v' is the target of the successor, or its
    value at the end of an episode or of the trajectory.

    Source: Espeholt et al. 2018, arXiv:1802.01561.
    """
    rho, c = jnp.minimum(max_rho, ratio), decay * jnp.minimum(max_c, ratio)
    error = rho * (reward + discount * ~terminated * next_value - value)
    target = value + _accumulate(error, discount * c * ~ended)
    last = ended.at[-1].set(True)
    next_target = jnp.where(last, next_value, jnp.roll(target, -1))
    return target, rho * (reward + discount * ~terminated * next_target - value)


def is_known(terminated: Flags, cut: Flags, choice: Flags, next_choice: Flags) -> Flags:
    """Return a mask of the steps whose following return is known, for games with forced steps.

    The return is known if the episode terminates, or if a step with a choice follows after only forced steps,
    since such a step has a value. A step has a choice if several actions are valid; otherwise, it is forced.
    `choice` marks the steps with a choice, `next_choice` the steps whose next observation offers one. `cut`
    marks truncations and the last step of the trajectory.
    """

    def scan_back(known: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        terminated, cut, choice, next_choice = now
        known = terminated | jnp.where(cut, next_choice, known)
        return choice | known, known

    return jax.lax.scan(scan_back, jnp.bool_(True), (terminated, cut, choice, next_choice), reverse=True)[1]


def skip_forced_steps(
    reward: Steps,
    value: Steps,
    next_value: Steps,
    terminated: Flags,
    cut: Flags,
    choice: Flags,
    known: Flags,
    discount: Number,
) -> tuple[Steps, Steps, Steps]:
    """Return the rewards, values and next values of a trajectory, modified so that forced steps have TD error 0.

    A step is forced if only one action is valid. Its value becomes the return that follows it, so that its
    reward counts for the last step before it with a choice. The TD error is also 0 if the following return is
    not known (`is_known`). `next_value` is used only at steps with `cut`.
    """

    def scan_back(worth: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        reward, value, beyond, terminated, cut, choice, known = now
        following = jnp.where(cut, beyond, worth)
        later = discount * ~terminated * following
        worth = jnp.where(choice, value, reward + later)
        return worth, (jnp.where(known, reward, worth - later), worth, following)

    steps = reward, value, next_value, terminated, cut, choice, known
    return jax.lax.scan(scan_back, jnp.zeros_like(reward[0]), steps, reverse=True)[1]


def _accumulate(step: Steps, factor: Steps) -> Steps:
    """Solve x_t = step_t + factor_t * x_{t+1} backwards, with x = 0 after the last step."""

    def add(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x = now[0] + now[1] * after
        return x, x

    return jax.lax.scan(add, jnp.zeros_like(step[0]), (step, factor), reverse=True)[1]


def rescale_value(x: Array) -> Array:
    """Compute sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which compresses large values.

    Source: Pohlen et al. 2018, arXiv:1805.11593.
    """
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + SLOPE * x


def unrescale_value(x: Array) -> Array:
    """Invert `rescale_value`."""
    more = 4 * SLOPE * (jnp.abs(x) + 1 + SLOPE)
    root = more / (jnp.sqrt(1 + more) + 1) / (2 * SLOPE)  # (sqrt(1 + more) - 1) / (2 * SLOPE) without loss of precision
    return jnp.sign(x) * (root**2 - 1)
