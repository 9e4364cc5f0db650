"""All private parts of Hydra and OmegaConf that evorl uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra import version
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.initialize import get_gh_backup, restore_gh_from_backup
from omegaconf import DictConfig

__all__ = ["FileConfigSource", "get_args_parser", "get_full_key", "get_node", "initialize"]


@contextmanager
def initialize() -> Iterator[None]:
    """Initialize Hydra within this context, as `hydra.initialize(None)` does, which reads all calling source files."""
    before = get_gh_backup()
    version.setbase("1.3")
    Hydra.create_main_hydra2("config", create_config_search_path(None))
    try:
        yield
    finally:
        restore_gh_from_backup(before)


def get_node(config: DictConfig, name: Any) -> Any:
    """Return the node with a name, without resolving it."""
    return config._get_node(name)


def get_full_key(node: Any) -> str:
    """Return the dotted name of a node in the whole configuration."""
    return node._get_full_key(None)
