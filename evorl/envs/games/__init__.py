"""Games: environments in which several members of several groups act at once, or in turn."""

from evorl.envs.games.around import Alone, Joint, Ranked

__all__ = ["Alone", "Joint", "Ranked"]
