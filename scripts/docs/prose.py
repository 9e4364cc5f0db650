"""Check the language of the project by the rules of prose.yaml: documentation, docstrings, comments and messages.

python scripts/docs/prose.py            check all files
python scripts/docs/prose.py FILE ...   check some
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((Path(__file__).parent / "prose.yaml").read_text(encoding="utf-8"))
OPENING = re.compile(rf"({'|'.join(RULES['openings'])})\b(?!.*\?$)")
PHRASES = [(re.compile(rf"\b({pattern})\b", re.IGNORECASE), instead) for pattern, instead in RULES["phrases"].items()]
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)(?<!eq\.)(?<!vs\.)(?<!cf\.)\s+(?=[A-Z`\"(\[])")
CODE = re.compile(r"``[^`]*``|`[^`]*`")
SECTIONS = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note|Source):")


@dataclass(frozen=True)
class Passage:
    """A piece of prose: where it is, its text, and whether it consists of whole sentences."""

    path: Path
    line: int
    text: str
    sentences: bool = True


def markdown_passages(path: Path, text: str, first: int = 1) -> Iterator[Passage]:
    """Yield the paragraphs, list items and table cells of a Markdown text, without code."""
    text = re.sub(r"\A---\n.*?\n---\n", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    inside_table, inside_heading, line = False, False, 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        line = token.map[0] if token.map else line
        inside_table = token.type != "table_close" if token.type.startswith("table_") else inside_table
        inside_heading = token.type == "heading_open" or (inside_heading and token.type != "heading_close")
        if token.type == "inline":
            words = "".join(
                "`code`" if one.type == "code_inline" else " " if one.type.endswith("break") else one.content
                for one in token.children or ()
                if one.type in ("text", "code_inline", "softbreak", "hardbreak")
            )
            whole = not (inside_table or inside_heading or re.match(r"(:::|\{|\$\$)", words))
            yield Passage(path, first + line, words, whole)


def python_passages(path: Path, text: str) -> Iterator[Passage]:
    """Yield the docstrings, comments and messages of a Python file."""
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            docstrings.add(node.body[0].value)  # pyright: ignore[reportAttributeAccessIssue]
            yield from docstring_passages(path, node)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(words)) if node not in docstrings and len(re.findall("[a-z]{2,}", words)) >= 3:
                yield Passage(path, node.lineno, words, sentences=False)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(path, token.start[0], token.string.lstrip("# "), sentences=False)


def docstring_passages(path: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[Passage]:
    """Yield the paragraphs of a docstring; the first one and the free text consist of sentences."""
    line = node.body[0].lineno
    entry = False
    for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
        kept = [
            one
            for one in paragraph.splitlines()
            if not one.lstrip().startswith((">>>", "...", "```", "|", "python -m"))
        ]
        entry = bool(SECTIONS.match(paragraph)) or (entry and paragraph.startswith(" "))
        aligned = any(re.search(r"\S {2,}\S", one) for one in kept)  # the columns of a help text
        yield Passage(path, line, " ".join(one.strip() for one in kept), sentences=not (entry or aligned))
        line += paragraph.count("\n") + 2


def yaml_passages(path: Path, text: str) -> Iterator[Passage]:
    """Yield the comments of a YAML file."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(r"(?:^|\s)# ?(.*)$", line)
        if found:
            yield Passage(path, number, found[1], sentences=False)


def notebook_passages(path: Path, text: str) -> Iterator[Passage]:
    """Yield the prose of the Markdown cells of a notebook."""
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            yield from markdown_passages(path, "".join(cell["source"]))


READERS = {".md": markdown_passages, ".py": python_passages, ".yaml": yaml_passages, ".ipynb": notebook_passages}


def find_faults(passage: Passage) -> Iterator[str]:
    """Yield what the rules object to in a passage."""
    text = CODE.sub("`code`", passage.text)
    for pattern, instead in PHRASES:
        for found in pattern.finditer(text):
            yield f"'{found[0]}': write {instead}"
    if not passage.sentences:
        return
    for sentence in SENTENCE_END.split(text):
        opening = OPENING.match(sentence)
        if opening:
            yield f"a sentence begins with '{opening[1]}', as a fragment does: '{sentence[:60]}'"
        for clause in re.split(r"[;:] ", sentence):  # a list of conditions is no long sentence
            words = len(re.findall(r"[\w'`./-]*\w[\w'`./-]*", clause))
            if words > RULES["clause_words"]:
                yield f"{words} words without a stop, above {RULES['clause_words']}: '{clause[:60]}...'"


def list_files() -> list[Path]:
    """Return the files whose prose is checked."""
    found = {path for pattern in RULES["files"] for path in ROOT.glob(pattern)}
    return sorted(found - {path for pattern in RULES["except"] for path in ROOT.glob(pattern)})


def check_file(path: Path) -> list[str]:
    """Return the faults of a file, each as one line with its place."""
    passages = READERS[path.suffix](path, path.read_text(encoding="utf-8"))
    return [f"{path.relative_to(ROOT)}:{one.line}: {fault}" for one in passages for fault in find_faults(one)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=lambda name: Path(name).resolve())
    faults = [fault for path in parser.parse_args().files or list_files() for fault in check_file(path)]
    print(*faults, f"{len(faults)} faults of prose", sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
