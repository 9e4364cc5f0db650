"""All private parts of Hydra and OmegaConf that evorl uses."""

from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

__all__ = ["FileConfigSource", "get_args_parser", "get_node"]


def get_node(config: DictConfig, name: Any) -> Any:
    """Return the node with a name, without resolving it."""
    return config._get_node(name)
