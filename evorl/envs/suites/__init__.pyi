"""Adapters for environments of other libraries."""

from evorl.envs.suites.brax import Brax as Brax
from evorl.envs.suites.craftax import Craftax as Craftax
from evorl.envs.suites.gymnasium import to_gymnasium as to_gymnasium
from evorl.envs.suites.gymnasium import to_gymnasium_vector as to_gymnasium_vector
from evorl.envs.suites.gymnasium import to_pettingzoo as to_pettingzoo
from evorl.envs.suites.gymnax import Gymnax as Gymnax
from evorl.envs.suites.jaxmarl import JaxMARL as JaxMARL
from evorl.envs.suites.jumanji import Jumanji as Jumanji
from evorl.envs.suites.navix import Navix as Navix
from evorl.envs.suites.pgx import Pgx as Pgx
from evorl.envs.suites.pgx import PgxGame as PgxGame
from evorl.envs.suites.playground import Playground as Playground
from evorl.envs.suites.xland import XLand as XLand
