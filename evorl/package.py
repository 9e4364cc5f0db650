"""The distribution that evorl is installed from: its version, its dependencies and its commands."""

import platform
import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "evorl-workflows"  # `evorl` and `evorl-jax` on the index are other projects


@cache
def _read_metadata() -> tuple[str, tuple[str, ...]]:
    """The version and the requirements: of what is installed, or else of the source tree."""
    try:
        found = metadata.distribution(DISTRIBUTION)
        return found.version, tuple(found.requires or ())
    except metadata.PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].items()
        needed = [f"{one}; extra == '{extra}'" for extra, requirements in extras for one in requirements]
        return project["version"], (*project["dependencies"], *needed)


def version() -> str:
    """Return the version of evorl."""
    return _read_metadata()[0]


def versions() -> dict[str, str]:
    """Return the versions of evorl, of jax and brax, and of Python, by name."""
    others = {name: metadata.version(name) for name in ("jax", "brax")}
    return {"evorl": version(), **others, "python": platform.python_version()}


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of evorl needs.

    Args:
        extra: a name of `project.optional-dependencies` in pyproject.toml.

    Returns:
        Such as `pip install "ray>=2.60"`, for a message.
    """
    name = re.sub("[-_.]", "[-_.]", extra)  # which an installer may write otherwise (PEP 503)
    of_extra = re.compile(rf"""extra == ['"]{name}['"]""")
    needed = [one.partition(";")[0].strip() for one in _read_metadata()[1] if of_extra.search(one)]
    return " ".join(["pip install", *(f'"{one}"' for one in needed)])


def format_command(module: str, *words: str, trust: Sequence[str] = ()) -> str:
    """Return a command that can be pasted into a shell, whatever a folder is called.

    Args:
        module: of evorl, such as "train".
        words: its arguments.
        trust: packages that it needs to be told to trust.
    """
    told = [f"trust=[{','.join(trust)}]"] if trust else []
    return shlex.join(["python", "-m", f"evorl.{module}", *words, *told])
