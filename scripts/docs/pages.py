"""Read the code blocks of the documentation, with the comments that define how they are tested.

A comment directly above a block changes how it is tested:

<!-- test: skip: needs a GPU -->                      the block is not run
<!-- test: file: configs/env/windy.yaml -->           the block is a file of the reader's folder
<!-- test: replace: 50_000 -> 500; num=16 -> num=4 --> smaller numbers
<!-- setup: from windy import WindyGrid -->           code that runs before the block; may have several lines
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"((?:^<!-- (?:test|setup):(?:(?!-->).)*-->\n)*)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (test|setup):((?:(?!-->).)*)-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Args:
        line: Line of the page where it begins.
        language: The word after the opening fence.
        code: The code with the replacements that its comment asks for.
        setup: Code to run before it.
        file: Name of the file that the block is, in the reader's folder, or "".
        skip: Why it is not run, or "".
    """

    line: int
    language: str
    code: str
    setup: str = ""
    file: str = ""
    skip: str = ""


def list_pages() -> list[Path]:
    """Return the README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page.

    Raises:
        ValueError: A comment is unknown, or replaces what the block does not contain.
    """
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        comments, language, code = found.groups()
        line = text[: found.start(2)].count("\n") + 1
        settings = {"setup": ""}
        for kind, content in COMMENT.findall(comments):
            if kind == "setup":
                settings["setup"] += content.strip() + "\n"
                continue
            name, _, value = content.strip().partition(": ")
            if name == "replace":
                for change in value.split("; "):
                    old, _, new = change.partition(" -> ")
                    if old not in code:
                        raise ValueError(f"{page.name}:{line}: replaces '{old}', which the block does not contain")
                    code = code.replace(old, new)
            elif name in ("file", "skip"):
                settings[name] = value
            else:
                raise ValueError(f"{page.name}:{line}: 'test: {name}' must be one of file, replace, skip")
        yield Block(line, language, code, **settings)
