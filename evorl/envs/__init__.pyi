"""Environments, wrappers, and a check of environments."""

from evorl.envs.actions import ActionRepeat as ActionRepeat
from evorl.envs.actions import RescaleAction as RescaleAction
from evorl.envs.actions import StickyAction as StickyAction
from evorl.envs.check import check_env as check_env
from evorl.envs.descriptors import FeetContact as FeetContact
from evorl.envs.descriptors import FinalPosition as FinalPosition
from evorl.envs.observations import DtypeObservation as DtypeObservation
from evorl.envs.observations import FlattenObservation as FlattenObservation
from evorl.envs.observations import TimeAwareObservation as TimeAwareObservation
from evorl.envs.observations import TimeLimit as TimeLimit
from evorl.envs.physics import Physics as Physics
from evorl.envs.wrappers import FilterObservation as FilterObservation
from evorl.envs.wrappers import FrameStack as FrameStack
from evorl.envs.wrappers import LinearReward as LinearReward
from evorl.envs.wrappers import RewardTransform as RewardTransform
from evorl.envs.wrappers import Wrapper as Wrapper
