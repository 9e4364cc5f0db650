"""The choices of a group, as env=ant: a file for each, or a line of a table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from evorl.errors import OptionError

TABLE = "_table.yaml"  # of a group's folder: a choice in each line, as ant: {_target_: Brax, name: ant} # Brax ant
PACKAGES_PREFIX = "packages: "  # begins the comment of a file that says what it imports
EXTRA_PREFIX = "extra: "  # and of one that says by what extra, where that is not its own name
_ENTRY_COMMENT = re.compile(r"""["']?([^\s:"']+)["']?:.*?\s# (.*)""")


@dataclass(frozen=True)
class Choice:
    """A configuration that a group offers.

    Attributes:
        path: the file, or the table that it is in.
        entry: its YAML where it is in a table.
    """

    path: Path
    entry: str | None = None

    @property
    def text(self) -> str:
        """Its YAML, with its comments."""
        return self.path.read_text(encoding="utf-8") if self.entry is None else self.entry

    @property
    def comments(self) -> list[str]:
        """The comments that have a line of their own."""
        return [line[1:].strip() for line in self.text.splitlines() if line.startswith("#")]

    @property
    def summary(self) -> str:
        """The first comment that says what it is."""
        others = ("@package", PACKAGES_PREFIX, EXTRA_PREFIX)
        return next((comment for comment in self.comments if not comment.startswith(others)), "")

    @property
    def is_suite(self) -> bool:
        """True where it stands for any environment of a suite, whose name is to be given."""
        return bool(re.search(r"^name: \?\?\?$", self.text, re.MULTILINE))

    def read(self) -> dict[str, Any]:
        """Return its content; nothing where it cannot be read."""
        try:
            content = yaml.safe_load(self.text)
        except (yaml.YAMLError, UnicodeDecodeError):
            return {}
        return content if isinstance(content, dict) else {}


def read_choices(folder: Path, nested: bool) -> dict[str, Choice]:
    """Return the choices of a group's folder by name; a file comes before a table's line of the same name.

    Args:
        folder: the folder, which need not be there.
        nested: whether those of folders in it are choices too, as arcade/pong.

    Raises:
        OptionError: where a table cannot be read.
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
    """Return the YAML of each choice of a table by name, none where there is no table.

    Raises:
        OptionError: where it cannot be read.
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
        raise OptionError(f"{path}: must be lines as ant: {{_target_: Brax, name: ant}} # Brax ant")
    comments = {match[1]: match[2] for match in map(_ENTRY_COMMENT.match, text.splitlines()) if match}
    entries = {}
    for name, value in table.items():
        node = {"_target_": value} if isinstance(value, str) else value
        if not isinstance(node, dict):
            raise OptionError(f"{path}: {name}: {value}: must be a class, or what a file would hold in braces")
        comment = comments.get(str(name), "")
        entries[str(name)] = (f"# {comment}\n" if comment else "") + yaml.safe_dump(node, sort_keys=False)
    return entries
