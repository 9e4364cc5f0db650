"""Small arcade games, most of them with PufferLib's rules.

In each game with randomness, `chance(key)` samples the random events of a step, and `advance(env_state,
action, chance)` takes the step with them.
"""

from evorl.envs.arcade.asteroids import Asteroids as Asteroids
from evorl.envs.arcade.breakout import Breakout as Breakout
from evorl.envs.arcade.cartpole import CartPole as CartPole
from evorl.envs.arcade.connect_four import ConnectFour as ConnectFour
from evorl.envs.arcade.freeway import Freeway as Freeway
from evorl.envs.arcade.game_2048 import Game2048 as Game2048
from evorl.envs.arcade.pong import Pong as Pong
from evorl.envs.arcade.snake import Snake as Snake
from evorl.envs.arcade.space_invaders import SpaceInvaders as SpaceInvaders
from evorl.envs.arcade.tetris import Tetris as Tetris
