"""Games: environments with several agents in groups, which act simultaneously or in turn."""

from evorl.envs.games.extensive_form import ExtensiveFormGame as ExtensiveFormGame
from evorl.envs.games.game_tree import GameTree as GameTree
from evorl.envs.games.game_wrappers import GroupRanking as GroupRanking
from evorl.envs.games.game_wrappers import JointControl as JointControl
from evorl.envs.games.game_wrappers import SingleAgentGame as SingleAgentGame
from evorl.envs.games.goofspiel import Goofspiel as Goofspiel
from evorl.envs.games.kuhn import Kuhn as Kuhn
from evorl.envs.games.leduc import Leduc as Leduc
from evorl.envs.games.liars_dice import LiarsDice as LiarsDice
from evorl.envs.games.matrix import MatrixGame as MatrixGame
from evorl.envs.games.open_spiel import OpenSpiel as OpenSpiel
from evorl.envs.games.pong import PongDuel as PongDuel
from evorl.envs.games.snakes import Snakes as Snakes
from evorl.envs.games.two_step import TwoStep as TwoStep
