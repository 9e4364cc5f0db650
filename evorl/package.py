"""Distribution package of evorl: its version, its dependencies, and the commands to install and run it."""

import platform
import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "evorl-workflows"  # `evorl` and `evorl-jax` on PyPI are other projects


@cache
def _read_metadata() -> tuple[str, tuple[str, ...]]:
    """Return the version and the requirements of the installed package or, if there is none, of the source tree."""
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
    """Return the versions of evorl, jax, brax and Python, by name."""
    others = {name: metadata.version(name) for name in ("jax", "brax")}
    return {"evorl": version(), **others, "python": platform.python_version()}


def install_command(extra: str) -> str:
    """Return the command that installs the requirements of an extra of evorl.

    Args:
        extra: Name of an extra, a key of `project.optional-dependencies` in pyproject.toml.

    Returns:
        A command for messages, such as `pip install "ray>=2.60"`.
    """
    name = re.sub("[-_.]", "[-_.]", extra)  # installers may normalize the name (PEP 503)
    of_extra = re.compile(rf"""extra == ['"]{name}['"]""")
    needed = [one.partition(";")[0].strip() for one in _read_metadata()[1] if of_extra.search(one)]
    return " ".join(["pip install", *(f'"{one}"' for one in needed)])


def format_command(module: str, *words: str, trust: Sequence[str] = ()) -> str:
    """Return a command to paste into a shell, quoted for any folder name.

    Args:
        module: Module of evorl, such as "train".
        words: Arguments of the command.
        trust: Packages to add as the option trust.
    """
    return shlex.join(["python", "-m", f"evorl.{module}", *words, *format_trust(trust)])


def format_trust(trust: Sequence[str]) -> list[str]:
    """Return the option that trusts packages, as arguments of a command; none if there are no packages."""
    return [f"trust=[{','.join(trust)}]"] if trust else []
