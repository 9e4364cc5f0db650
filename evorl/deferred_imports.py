"""Deferred imports: a module of another library, without the libraries that it imports but does not use yet."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class DeferredModule(ModuleType):
    """Stand-in for a module, which imports it when one of its attributes is used, but not while it is deferred."""

    _is_deferred = True

    def __getattr__(self, name: str) -> Any:
        if self._is_deferred:  # the import machinery looks for submodules and for attributes such as __file__
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} while its import is deferred")
        return getattr(importlib.import_module(self.__name__), name)


class _DeferringFinder(MetaPathFinder, Loader):
    """Finder and loader that give stand-ins for packages and their modules."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        deferred = fullname.partition(".")[0] in self._packages
        return ModuleSpec(fullname, self, is_package=True) if deferred else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, since a stand-in is complete when it is created."""


def import_deferring(module: str, *packages: str) -> ModuleType:
    """Import a module; packages that it imports are imported when the module uses them.

    Meanwhile, the module has stand-ins, which are not in `sys.modules`, so that other modules import the
    packages as usual. A package that is already imported is not deferred. If the module uses a package while
    it is imported, no package is deferred.

    Args:
        module: Dotted name.
        packages: Names of top-level packages.

    Returns:
        The module.
    """
    with contextlib.suppress(AttributeError), _defer([one for one in packages if one not in sys.modules]):
        return importlib.import_module(module)
    return importlib.import_module(module)


@contextlib.contextmanager
def _defer(packages: Sequence[str]) -> Iterator[None]:
    finder = _DeferringFinder(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, DeferredModule):
                del sys.modules[name]
                module._is_deferred = False
