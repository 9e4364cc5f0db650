"""Returns and advantages: one equation on one trajectory each, [num_steps]; the caller vmaps.

Throughout, an episode that ends inside the trajectory cuts it. next_value is the value of the true successor of each
step; it counts where the episode did not terminate, so also where it was truncated.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl.parts import Number

Steps = Float[Array, " steps"]
Flags = Bool[Array, " steps"]
SLOPE = 1e-3  # of rescaled numbers where they are large


def gae(
    reward: Steps,
    value: Steps,
    next_value: Steps,
    terminated: Flags,
    ended: Flags,
    discount: Number,
    decay: Number,
) -> Steps:
    """Generalized advantage estimation with decay lambda (Schulman et al. 2016, arXiv:1506.02438, eq. 16)."""
    error = reward + discount * ~terminated * next_value - value
    return _accumulate(error, discount * decay * ~ended)


def n_step_return(reward: Any, steps: Int[Array, ""], discount: Number) -> tuple[Any, Float[Array, ""]]:
    """The discounted sum of rewards, which are 0 from `steps` on, and the discount of the value that comes after it.

    Rewards are an array [steps], or of several the leaves [..., steps].
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
    """V-trace targets of the value and advantages of the policy gradient (Espeholt et al. 2018, arXiv:1802.01561).

    ratio is pi(a|s) / mu(a|s). Equation 1 with c = decay * min(max_c, ratio), and the advantages of section 4.2,
    rho (r + discount v' - V), where v' is the target of the successor, or its value where the trajectory is cut.
    """
    rho, c = jnp.minimum(max_rho, ratio), decay * jnp.minimum(max_c, ratio)
    error = rho * (reward + discount * ~terminated * next_value - value)
    target = value + _accumulate(error, discount * c * ~ended)
    last = ended.at[-1].set(True)
    next_target = jnp.where(last, next_value, jnp.roll(target, -1))
    return target, rho * (reward + discount * ~terminated * next_target - value)


def is_known(terminated: Flags, cut: Flags, choice: Flags, next_choice: Flags) -> Flags:
    """Whether what follows each step is worth a known sum: up to an end, or to a step with a choice, which has a value.

    choice says of which steps there was one, next_choice after which ones there is; cut where time ran out, and of the
    last step.
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
    """Rewards, values and next values of a trajectory in which a step without a choice is worth what comes of it.

    Its error is then 0, so that what it earns reaches the last choice before it. The error is 0 too where what follows
    is not known (is_known). next_value counts where cut.
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
    """x_t = step_t + factor_t x_{t+1}, 0 after the last."""

    def add(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x = now[0] + now[1] * after
        return x, x

    return jax.lax.scan(add, jnp.zeros_like(step[0]), (step, factor), reverse=True)[1]


def rescale_value(x: Array) -> Array:
    """sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which makes large numbers small (Pohlen et al. 2018, arXiv:1805.11593)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + SLOPE * x


def unrescale_value(x: Array) -> Array:
    """What rescale_value gives x for."""
    more = 4 * SLOPE * (jnp.abs(x) + 1 + SLOPE)
    root = more / (jnp.sqrt(1 + more) + 1) / (2 * SLOPE)  # sqrt(1 + more) - 1 without loss
    return jnp.sign(x) * (root**2 - 1)
