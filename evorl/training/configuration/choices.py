"""Choices of a group, such as env=ant: each is a file, or a line of a table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from evorl.errors import OptionError

TABLE = "_table.yaml"  # one choice per line, such as ant: {_target_: Brax, name: ant} # Brax ant
PACKAGES_PREFIX = "packages: "  # comment that lists the packages a choice imports
EXTRA_PREFIX = "extra: "  # comment with the extra of evorl that installs them, if it differs from the file name
_ENTRY_COMMENT = re.compile(r"""["']?([^\s:"']+)["']?:.*?\s# (.*)""")


@dataclass(frozen=True)
class Choice:
    """A configuration that a group offers.

    Attributes:
        path: File of the choice, or the table that contains it.
        entry: YAML text of the choice if it is in a table, otherwise None.
    """

    path: Path
    entry: str | None = None

    @property
    def text(self) -> str:
        """Return the YAML text, with comments."""
        return self.path.read_text(encoding="utf-8") if self.entry is None else self.entry

    @property
    def comments(self) -> list[str]:
        """Return the comments that have their own line."""
        return [line[1:].strip() for line in self.text.splitlines() if line.startswith("#")]

    @property
    def summary(self) -> str:
        """Return the first comment that describes the choice."""
        others = ("@package", PACKAGES_PREFIX, EXTRA_PREFIX)
        return next((comment for comment in self.comments if not comment.startswith(others)), "")

    @property
    def is_suite(self) -> bool:
        """Return whether the choice is a suite of environments, whose name the user adds."""
        return bool(re.search(r"^name: \?\?\?$", self.text, re.MULTILINE))

    def read(self) -> dict[str, Any]:
        """Return the content as a dict, which is empty if the YAML cannot be read."""
        try:
            content = yaml.safe_load(self.text)
        except (yaml.YAMLError, UnicodeDecodeError):
            return {}
        return content if isinstance(content, dict) else {}


def read_choices(folder: Path, nested: bool) -> dict[str, Choice]:
    """Return the choices in a folder by name; a file has priority over a table entry of the same name.

    Args:
        folder: Folder of a group, which may be missing.
        nested: Whether subfolders contain choices, too, such as arcade/pong.

    Raises:
        OptionError: A table cannot be read.
    """
    found: dict[str, Choice] = {}
    paths = sorted(folder.glob("**/*.yaml" if nested else "*.yaml"), key=lambda path: path.name != TABLE)
    for path in paths:
        place = path.relative_to(folder)
        if path.name != TABLE:
            found[place.with_suffix("").as_posix()] = Choice(path)
            continue
        for name, entry in read_table(path).items():
            found[(place.parent / name).as_posix()] = Choice(path, entry)
    return dict(sorted(found.items()))


def read_table(path: Path) -> Mapping[str, str]:
    """Return the YAML text of each choice of a table by name; empty if there is no table.

    Raises:
        OptionError: The table cannot be read.
    """
    try:
        status = path.stat()
    except OSError:
        return {}
    return _read_table(path, status.st_mtime_ns, status.st_size)


@lru_cache
def _read_table(path: Path, *_version: int) -> Mapping[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
        table = yaml.safe_load(text) or {}
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise OptionError(f"{path}: cannot be read: {' '.join(str(error).split()):.200}") from error
    if not isinstance(table, dict):
        raise OptionError(f"{path}: must be lines such as ant: {{_target_: Brax, name: ant}} # Brax ant")
    comments = {match[1]: match[2] for match in map(_ENTRY_COMMENT.match, text.splitlines()) if match}
    entries = {}
    for name, value in table.items():
        node = {"_target_": value} if isinstance(value, str) else value
        if not isinstance(node, dict):
            raise OptionError(f"{path}: {name}: {value}: must be a class, or a mapping with _target_ in braces")
        comment = comments.get(str(name), "")
        entries[str(name)] = (f"# {comment}\n" if comment else "") + yaml.safe_dump(node, sort_keys=False)
    return entries
