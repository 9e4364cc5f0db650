"""Networks: image encoders, recurrent cores and mixing networks."""

from evorl.networks.encoders import CNN as CNN
from evorl.networks.mixers import MonotonicMixer as MonotonicMixer
from evorl.networks.mixers import SumMixer as SumMixer
from evorl.networks.network import Feedforward as Feedforward
from evorl.networks.network import Flat as Flat
from evorl.networks.recurrent import GRU as GRU
from evorl.networks.recurrent import LSTM as LSTM
from evorl.networks.s5 import S5 as S5
