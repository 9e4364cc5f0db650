"""Mutation operators: functions that yield the edits which one node of a syntax tree allows."""

import ast
import re
from collections.abc import Callable, Iterator

Edit = tuple[ast.AST, int, int, str]  # the node to show, the first byte to replace and the one after, the new text
Operator = Callable[[ast.AST, "Source"], Iterator[Edit]]

SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
FACTORS = {ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
COMPARISONS = {
    ast.Lt: ("<", ">="),
    ast.GtE: (">=", "<"),
    ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
EXTREMES = [("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("amin", "amax"), ("pmin", "pmax")]
EXTREME = dict(EXTREMES) | {b: a for a, b in EXTREMES}
ENDS = {"terminated": "truncated", "truncated": "terminated"}
REDUCTIONS = {"sum", "mean", "std", "var", "prod", "any", "all", "cumsum", "cumprod", "min", "max", "argmin", "argmax"}
AXES = {"axis", "in_axes", "out_axes"}
MASK = re.compile(r"mask|valid|legal")
COUNTER = re.compile(r"[ijknt]|.*(index|idx|place|position|rank)")
PATH = re.compile(r"path|folder|root|_dir\b|__file__")
SEQUENCES = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)


class Source:
    """A source text with its syntax tree, the parent of each node, and the byte offsets of nodes."""

    def __init__(self, text: str) -> None:
        self.bytes, self.tree = text.encode(), ast.parse(text)
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the first byte of a node and the one after its last."""
        start = self.starts[getattr(node, "lineno") - 1] + getattr(node, "col_offset")  # noqa: B009  of any node
        return start, self.starts[getattr(node, "end_lineno") - 1] + getattr(node, "end_col_offset")  # noqa: B009

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def operand(self, node: ast.AST) -> str:
        """Return the text of a node for any place, in parentheses unless it binds tighter than every operator."""
        text = self.text(node)
        return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"

    def token(self, node: ast.AST, left: ast.AST, right: ast.AST, swap: tuple[str, str]) -> Iterator[Edit]:
        """Replace the first token of `swap` by the second, between two nodes of one line."""
        first, last = self.span(left)[1], self.span(right)[0]
        between = self.bytes[first:last].decode()
        if "\n" not in between:
            start = first + between.index(swap[0])
            yield node, start, start + len(swap[0]), swap[1]

    def whole(self, node: ast.AST, text: str) -> Iterator[Edit]:
        """Replace a node."""
        yield node, *self.span(node), text

    def function(self, node: ast.AST) -> ast.AST:
        """Return the innermost function around a node, or the module."""
        while node in self.parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node = self.parents[node]
        return node


def called_name(node: ast.AST) -> str:
    """Return the last part of the name of the function that a node calls, or an empty string."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def literal_integer(node: ast.AST | None) -> int | None:
    """Return the value of a literal integer, negative ones included."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal_integer(node.operand)
        return None if value is None else -value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def is_sequence(node: ast.AST) -> bool:
    """Return whether a node is a list, a tuple or a string, for which + and * have other meanings."""
    if isinstance(node, ast.BinOp):
        return is_sequence(node.left) or is_sequence(node.right)
    return isinstance(node, SEQUENCES) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def swap_arithmetic(table: dict[type, tuple[str, str]]) -> Operator:
    """Make the operator that replaces arithmetic operators by a table, except where they join text or paths."""

    def edits(node: ast.AST, source: Source) -> Iterator[Edit]:
        match node:
            case ast.BinOp(left, op, right) if type(op) in table:
                literal = isinstance(left, ast.Constant) and isinstance(right, ast.Constant)
                joins = isinstance(op, ast.Div) and PATH.search(source.text(left).lower())
                if not (literal or joins or is_sequence(left) or is_sequence(right)):
                    yield from source.token(node, left, right, table[type(op)])
            case ast.AugAssign(target, op, value) if type(op) in table and not is_sequence(value):
                yield from source.token(node, target, value, table[type(op)])

    return edits


def flip_sign(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Flip + and -, also the unary minus, except where it makes an index or an axis."""
    yield from swap_arithmetic(SIGNS)(node, source)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        parent = source.parents[node]
        grand = source.parents[parent]
        place = isinstance(parent, ast.Slice | ast.Subscript) or isinstance(grand, ast.Slice | ast.Subscript)
        axis = isinstance(parent, ast.keyword) and parent.arg in AXES
        shape = called_name(parent) in REDUCTIONS | {"reshape"} or called_name(grand) == "reshape"
        if not (literal_integer(node) is not None and (place or axis or shape)):
            start = source.span(node)[0]
            yield node, start, start + 1, "+"


def negate_comparison(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Negate a comparison."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            if type(op) in COMPARISONS:
                yield from source.token(node, left, right, COMPARISONS[type(op)])


def shift_index(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Shift an index or the bound of a slice down by one, 0 up: JAX clamps what lies beyond the end."""
    if not isinstance(node, ast.Subscript) or called_name(node.value) == "take_along_axis":  # often one entry
        return
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    places = [x for part in parts for x in ((part.lower, part.upper) if isinstance(part, ast.Slice) else (part,))]
    for place in places:
        value = literal_integer(place)
        if place is not None and value is not None:
            yield node, *source.span(place), str(value - 1 if value else 1)
        elif isinstance(place, ast.Name) and (COUNTER.fullmatch(place.id) or place not in parts):
            yield node, *source.span(place), f"{place.id} - 1"


def drop_mask(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Drop a mask: `where(m, a, b)` becomes `a`, and a product with a mask becomes its other factor."""
    match node:
        case ast.Call(args=[_, kept, _]) if called_name(node) == "where":
            yield from source.whole(node, source.operand(kept))
        case ast.BinOp(left, ast.Mult() | ast.BitAnd(), right):
            for factor, kept in ((right, left), (left, right)):
                inverted = isinstance(factor, ast.UnaryOp) and isinstance(factor.op, ast.Invert)
                named = isinstance(factor, ast.Name | ast.Attribute) and MASK.search(source.text(factor))
                if inverted or named:
                    yield from source.whole(node, source.operand(kept))
                    return


def drop_stop_gradient(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Drop a `stop_gradient`, except where no gradient flows.

    None flows in a loss's metrics, and in values that do not depend on `params`.
    """
    if isinstance(node, ast.Call) and called_name(node) == "stop_gradient":
        parent = source.parents[node]
        beside = isinstance(parent, ast.Tuple) and isinstance(source.parents[parent], ast.Return)
        derived = find_derived(source.function(node), "params")
        if not beside and (not derived or names_in(node.args[0]) & derived):
            yield from source.whole(node, source.operand(node.args[0]))


def names_in(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def find_derived(function: ast.AST, argument: str) -> set[str]:
    """Return the names that a function computes from one of its arguments; none if it has no such argument."""
    if argument not in {x.arg for x in ast.walk(function) if isinstance(x, ast.arg)}:
        return set()
    found, before = {argument}, set()
    assignments = [x for x in ast.walk(function) if isinstance(x, ast.Assign | ast.AugAssign | ast.For | ast.NamedExpr)]
    while found != before:
        before = set(found)
        for x in assignments:
            targets = x.targets if isinstance(x, ast.Assign) else [x.target]
            if names_in(x.iter if isinstance(x, ast.For) else x.value) & found:
                found.update(*(names_in(y.value if isinstance(y, ast.Subscript) else y) for y in targets))
    return found


def swap_ends(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Swap `terminated` and `truncated`: names that the function has, attributes that it reads, and keywords."""
    match node:
        case ast.Name(name, ast.Load()) if name in ENDS:
            inside = ast.walk(source.function(node))
            names = {x.arg if isinstance(x, ast.arg) else getattr(x, "id", "") for x in inside}
            if ENDS[name] in names:
                yield from source.whole(node, ENDS[name])
        case ast.Attribute(_, name, ast.Load()) if name in ENDS:
            end = source.span(node)[1]
            yield node, end - len(name), end, ENDS[name]
        case ast.Call(keywords=keywords):
            found = [x for x in keywords if x.arg in ENDS]
            if found:
                start, end = source.span(found[0])[0], source.span(found[-1])[1]
                text = source.bytes[start:end].decode()
                yield node, start, end, re.sub(r"\b(terminated|truncated)(?==)", lambda m: ENDS[m[0]], text)


def reuse_key(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Reuse a random key: one of the keys of a split, or the key before a `fold_in`."""
    match node:
        case ast.Assign([ast.Tuple([ast.Name(first), *_, ast.Name(last)])], value) if called_name(value) == "split":
            end = source.span(node)[1]
            if "random" in source.text(value) and "_" not in (first, last):
                yield node, end, end, f"; {last} = {first}"
        case ast.Call(args=[kept, _]) if called_name(node) == "fold_in":
            yield from source.whole(node, source.text(kept))
        case ast.Call(ast.Attribute(), [kept, *count]) if source.text(node.func) == "jax.random.split":
            parent = source.parents[node]
            if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple)):
                number = source.text(count[0]) if count else "2"
                yield from source.whole(node, f"jax.numpy.broadcast_to({source.text(kept)}, {number})")


def change_axis(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Use the neighboring axis; for an argument of `vmap`, swap mapped and unmapped."""
    if isinstance(node, ast.keyword) and node.arg in AXES:
        yield from move_axis(node, node.value, source, node.arg != "axis")
    elif called_name(node) == "vmap" and isinstance(node, ast.Call) and len(node.args) > 1:
        yield from move_axis(node, node.args[1], source, True)
    elif called_name(node) in REDUCTIONS and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        module = isinstance(node.func.value, ast.Name) and node.func.value.id in ("jnp", "np")
        if len(node.args) == 1 + module:
            yield from move_axis(node, node.args[-1], source, False)


def move_axis(shown: ast.AST, node: ast.expr, source: Source, mapped: bool) -> Iterator[Edit]:
    """Change an axis, or each of those in a tuple for the arguments of a mapped function."""
    value = literal_integer(node)
    if value is not None:
        yield shown, *source.span(node), str({0: 1, -1: -2}.get(value, value - 1 if value > 0 else value + 1))
    for part in node.elts if mapped and isinstance(node, ast.Tuple) else []:
        if literal_integer(part) is not None:
            yield shown, *source.span(part), "None"
        elif isinstance(part, ast.Constant) and part.value is None:
            yield shown, *source.span(part), "0"


def swap_extremes(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Swap minimum and maximum."""
    if isinstance(node, ast.Call) and called_name(node) in EXTREME:
        end, name = source.span(node.func)[1], called_name(node)
        yield node, end - len(name), end, EXTREME[name]


OPERATORS: dict[str, Operator] = {
    "sign": flip_sign,
    "comparison": negate_comparison,
    "index": shift_index,
    "mask": drop_mask,
    "stop_gradient": drop_stop_gradient,
    "termination": swap_ends,
    "key": reuse_key,
    "axis": change_axis,
    "min_max": swap_extremes,
    "division": swap_arithmetic(FACTORS),
}
