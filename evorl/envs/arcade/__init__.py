"""Games of one screen of code each, most of them by PufferLib's rules.

What one leaves to chance is drawn by chance(key), and advance(env_state, action, chance) is a step without any.
"""

from evorl.envs.arcade.asteroids import Asteroids
from evorl.envs.arcade.breakout import Breakout
from evorl.envs.arcade.cartpole import CartPole
from evorl.envs.arcade.connect_four import ConnectFour
from evorl.envs.arcade.freeway import Freeway
from evorl.envs.arcade.game_2048 import Game2048
from evorl.envs.arcade.pong import Pong
from evorl.envs.arcade.snake import Snake
from evorl.envs.arcade.space_invaders import SpaceInvaders
from evorl.envs.arcade.tetris import Tetris

__all__ = [
    "Asteroids", "Breakout", "CartPole", "ConnectFour", "Freeway", "Game2048", "Pong", "Snake", "SpaceInvaders",
    "Tetris",
]  # fmt: skip
