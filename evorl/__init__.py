"""Evolutionary reinforcement learning on JAX: the names that most programs use, imported when first asked for.

The other public names are in the packages `agents`, `ec`, `envs` and those below it, `leagues`, `networks`,
`population`, `problems`, `replay`, `spaces`, `sweeps`, `ued` and `workflows`.
"""

import importlib
import os
from typing import Any

from evorl import lazy

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's alarm at slow compilations; evorl tells how long it compiles

_get_public_name, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return importlib.import_module("evorl.package").version() if name == "__version__" else _get_public_name(name)
