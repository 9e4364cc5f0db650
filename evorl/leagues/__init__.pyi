"""Leagues: populations of policies for games, with payoff tables, meta-solvers, exact values and ratings."""

from evorl.leagues.alpha_rank import AlphaRank as AlphaRank
from evorl.leagues.auto_solver import AutoSolver as AutoSolver
from evorl.leagues.fictitious_play import FictitiousPlay as FictitiousPlay
from evorl.leagues.fictitious_play import RegretMatching as RegretMatching
from evorl.leagues.league import League as League
from evorl.leagues.matchmaking import Matchmaking as Matchmaking
from evorl.leagues.matchmaking import Roster as Roster
from evorl.leagues.nash import Nash as Nash
from evorl.leagues.nfsp import NFSP as NFSP
from evorl.leagues.oracles import BestResponseOracle as BestResponseOracle
from evorl.leagues.payoffs import Payoffs as Payoffs
from evorl.leagues.pipeline_psro import PipelinePSRO as PipelinePSRO
from evorl.leagues.prioritized_solvers import PFSP as PFSP
from evorl.leagues.prioritized_solvers import RectifiedNash as RectifiedNash
from evorl.leagues.psro import PSRO as PSRO
from evorl.leagues.replicator import ProjectedReplicator as ProjectedReplicator
from evorl.leagues.replicator import Replicator as Replicator
from evorl.leagues.solvers import NewestPolicySolver as NewestPolicySolver
from evorl.leagues.solvers import UniformlyMixedSolver as UniformlyMixedSolver
from evorl.leagues.solvers import UniformMixture as UniformMixture
from evorl.leagues.training_oracle import TrainingOracle as TrainingOracle
from evorl.leagues.xfp import XFP as XFP
