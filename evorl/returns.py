"""Returns and advantages: one equation on one trajectory each, [num_steps]; the caller vmaps.

Throughout, an episode that ends inside the trajectory cuts it. next_value is the value of the true successor of each
step; it counts where the episode did not terminate, so also where it was truncated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evorl.hyperparameters import Number

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


def n_step_return(reward: Steps, steps: Int[Array, ""], discount: Number) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The discounted sum of rewards, which are 0 from `steps` on, and the discount of the value that comes after it."""
    return (discount ** jnp.arange(reward.size) * reward).sum(), jnp.float32(discount) ** steps


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


def _accumulate(step: Steps, factor: Steps) -> Steps:
    """x_t = step_t + factor_t x_{t+1}, 0 after the last."""

    def add(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x = now[0] + now[1] * after
        return x, x

    return jax.lax.scan(add, jnp.zeros_like(step[0]), (step, factor), reverse=True)[1]


def rescaled(x: Array) -> Array:
    """sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which makes large numbers small (Pohlen et al. 2018, arXiv:1805.11593)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + SLOPE * x


def unscaled(x: Array) -> Array:
    """What rescaled gives x for."""
    more = 4 * SLOPE * (jnp.abs(x) + 1 + SLOPE)
    root = more / (jnp.sqrt(1 + more) + 1) / (2 * SLOPE)  # sqrt(1 + more) - 1 without loss
    return jnp.sign(x) * (root**2 - 1)
