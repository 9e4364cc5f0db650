from evorl.ec.cem import CEM, CEMHyperparams

__all__ = ["CEM", "CEMHyperparams"]
