"""Games: environments in which several members of several groups act at once, or in turn."""

from evorl.envs.games.around import Joint, Ranked

__all__ = ["Joint", "Ranked"]
