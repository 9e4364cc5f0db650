"""Evolutionary reinforcement learning on JAX: the most common names, imported lazily.

The other public names are in packages such as `agents`, `ec`, `envs`, `networks` and `workflows`.
docs/reference/public_api.md lists all packages.
"""

import importlib
import os
from typing import Any

from evorl import lazy

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides XLA's slow-compile alarm; evorl reports compile times

_get_public_name, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return importlib.import_module("evorl.package").version() if name == "__version__" else _get_public_name(name)
