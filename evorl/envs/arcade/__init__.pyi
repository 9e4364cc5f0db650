"""Games of one screen of code each, most of them by PufferLib's rules.

What one leaves to chance is drawn by chance(key), and advance(env_state, action, chance) is a step without any."""

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
