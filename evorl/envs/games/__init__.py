"""Games: environments in which several members of several groups act at once, or in turn."""

from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.game_tree import GameTree
from evorl.envs.games.game_wrappers import GroupRanking, JointControl, SingleAgentGame
from evorl.envs.games.goofspiel import Goofspiel
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.leduc import Leduc
from evorl.envs.games.liars_dice import LiarsDice
from evorl.envs.games.matrix import MatrixGame
from evorl.envs.games.open_spiel import OpenSpiel
from evorl.envs.games.pong import PongDuel
from evorl.envs.games.snakes import Snakes
from evorl.envs.games.two_step import TwoStep

__all__ = [
    "ExtensiveFormGame",
    "GameTree",
    "Goofspiel",
    "GroupRanking",
    "JointControl",
    "Kuhn",
    "Leduc",
    "LiarsDice",
    "MatrixGame",
    "OpenSpiel",
    "PongDuel",
    "SingleAgentGame",
    "Snakes",
    "TwoStep",
]
