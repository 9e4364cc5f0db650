"""Games: environments in which several members of several groups act at once, or in turn."""

from evorl.envs.games.around import Alone, Joint, Ranked
from evorl.envs.games.goofspiel import Goofspiel
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.leduc import Leduc
from evorl.envs.games.liars_dice import LiarsDice
from evorl.envs.games.matrix import Matrix
from evorl.envs.games.open_spiel import OpenSpiel
from evorl.envs.games.pong import PongDuel
from evorl.envs.games.snakes import Snakes
from evorl.envs.games.tabled import Tabled
from evorl.envs.games.tree import GameTree
from evorl.envs.games.two_step import TwoStep

__all__ = [
    "Alone", "GameTree", "Goofspiel", "Joint", "Kuhn", "Leduc", "LiarsDice", "Matrix", "OpenSpiel", "PongDuel",
    "Ranked", "Snakes", "Tabled", "TwoStep",
]  # fmt: skip
