"""Find the sites of one-line mutants in the files of a package, and draw a stratified sample of them."""

import ast
import bisect
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mutation_operators import OPERATORS, Edit, Source, called_name

Lines = tuple[int, int]  # the first and the last one
Function = ast.FunctionDef | ast.AsyncFunctionDef

TALK = {"print", "warn", "debug", "info", "warning", "error", "log", "add_argument"}
QUIET = {"unroll", "donate_argnums", "max_workers", "timeout", "refresh_per_second"}  # options that change no number
UNRUN = {"overload", "abstractmethod"}


@dataclass(frozen=True)
class Site:
    """One mutant: the place in a file, the operator, and the bytes that it replaces."""

    file: str
    line: int
    column: int
    operator: str
    before: str  # the expression, or the whole line of one that takes several
    after: str
    start: int = field(repr=False)  # bytes of the file
    end: int = field(repr=False)
    text: str = field(repr=False)
    places: tuple[tuple[Lines, ...], ...] = field(repr=False)  # lines that a chosen test has run, the narrowest first

    @property
    def name(self) -> tuple[str, int, int, str]:
        return self.file, self.line, self.column, self.operator

    @property
    def folder(self) -> str:
        return Path(self.file).parent.as_posix()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.operator}  {self.before}  ->  {self.after}"


def mutate(text: str, site: Site) -> str:
    """Return the source text with the mutation.

    Raises:
        ValueError: The mutant does not parse, or has the same syntax tree.
    """
    source = text.encode()
    mutant = (source[: site.start] + site.text.encode() + source[site.end :]).decode()
    try:
        same = ast.dump(ast.parse(mutant)) == ast.dump(ast.parse(text))
    except SyntaxError as error:
        raise ValueError(f"{site}: the mutant does not parse: {error}") from None
    if same:
        raise ValueError(f"{site}: the mutant has the same syntax tree")
    return mutant


def is_skipped(node: ast.AST, source: Source) -> bool:
    """Return whether to skip a node: text for people, types, errors, and code that changes no number."""
    match node:
        case ast.JoinedStr() | ast.Raise():
            return True
        case ast.FunctionDef(name=name, returns=returns, decorator_list=marks):
            text = name in ("__repr__", "__str__") or (isinstance(returns, ast.Name) and returns.id == "str")
            return text or any(source.text(mark).rpartition(".")[2] in UNRUN for mark in marks)
        case ast.If(test):
            return bool(re.search(r"TYPE_CHECKING|__name__", source.text(test)))
        case ast.ClassDef(bases=bases):
            return any(source.text(base).startswith("Protocol") for base in bases)
        case ast.keyword(name):
            return name in QUIET
        case ast.Call():
            return called_name(node) in TALK or called_name(node).endswith(("Error", "Warning"))
    return False


def find_sites(file: str, text: str) -> list[Site]:
    """Return the sites in a source text, sorted, one for each line, column and operator."""
    source = Source(text)
    bodies = tuple(_body_lines(node) for node in ast.walk(source.tree) if isinstance(node, Function))
    found: dict[tuple, Site] = {}
    for node, statement, function in _walk(source.tree, source, None, None):
        places = _list_places(statement, function)
        for operator, edits in OPERATORS.items():
            for edit in edits(node, source):
                if "\n" not in source.bytes[edit[1] : edit[2]].decode() + edit[3]:
                    site = _make_site(source, file, operator, edit, (*places, bodies))
                    found.setdefault(site.name, site)
    return [found[name] for name in sorted(found)]


def find_all_sites(root: Path, package: str) -> list[Site]:
    """Return the sites in every file of a package, sorted."""
    files = sorted(path.relative_to(root).as_posix() for path in (root / package).rglob("*.py"))
    return [site for file in files for site in find_sites(file, (root / file).read_text(encoding="utf-8"))]


def draw_sites(found: list[Site], count: int, seed: int) -> list[Site]:
    """Draw sites from each folder in proportion to its number, at least one, and evenly over the operators."""
    chance, used, drawn = random.Random(seed), Counter(), []
    folders = defaultdict(list)
    for site in sorted(found, key=lambda site: site.name):
        folders[site.folder].append(site)
    counts = share_out({name: len(own) for name, own in folders.items()}, count)
    for folder in chance.sample(sorted(counts), len(counts)):
        waiting = chance.sample(folders[folder], len(folders[folder]))
        for _ in range(counts[folder]):
            site = min(waiting, key=lambda site: used[site.operator])
            waiting.remove(site)
            drawn.append(site)
            used[site.operator] += 1
    return sorted(drawn, key=lambda site: site.name)


def share_out(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Return the number of sites to draw from each folder: at least one, and more in proportion to its sites."""
    given = dict.fromkeys(sorted(sizes), 1)
    for _ in range(min(count, sum(sizes.values())) - len(given)):
        open_ones = [name for name in given if given[name] < sizes[name]]
        given[max(open_ones, key=lambda name: sizes[name] / given[name])] += 1
    return given


def _walk(
    node: ast.AST, source: Source, statement: ast.stmt | None, function: Function | None
) -> Iterator[tuple[ast.AST, ast.stmt | None, Function | None]]:
    """Yield the nodes that may be mutated, with the innermost statement and function around each."""
    if is_skipped(node, source):
        return
    statement = node if isinstance(node, ast.stmt) else statement
    function = node if isinstance(node, Function) else function
    yield node, statement, function
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                yield from _walk(child, source, statement, function)


def _list_places(statement: ast.stmt | None, function: Function | None) -> tuple[tuple[Lines, ...], ...]:
    """Return the lines of a statement, without its block, and of its function; for a header, only the function's.

    Module level and headers run at import, so a recorded test says nothing about them.
    """
    if statement is None or function is None:
        return ()
    block = getattr(statement, "body", None)
    last = block[0].lineno - 1 if isinstance(block, list) else statement.end_lineno or 0
    own = (statement.lineno, max(statement.lineno, last))
    return ((_body_lines(function),),) if statement is function else ((own,), (_body_lines(function),))


def _body_lines(function: Function) -> Lines:
    return function.body[0].lineno, function.end_lineno or function.lineno


def _make_site(source: Source, file: str, operator: str, edit: Edit, places: tuple[tuple[Lines, ...], ...]) -> Site:
    node, start, end, new = edit
    line = bisect.bisect(source.starts, start)
    first, last = source.span(node)
    if b"\n" in source.bytes[first:last]:
        first, last = source.starts[line - 1], source.starts[line] - 1
    last = max(last, end)
    before = source.bytes[first:last].decode()
    after = (source.bytes[first:start] + new.encode() + source.bytes[end:last]).decode()
    column = start - source.starts[line - 1]
    return Site(file, line, column, operator, before.strip(), after.strip(), start, end, new, places)
