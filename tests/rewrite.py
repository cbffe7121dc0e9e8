"""Replace a piece of code that is found by its syntax tree, whatever its layout and its local variables' names."""

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple


class Place(NamedTuple):
    """A function, a class or a whole module, and the names that are its own and may be renamed."""

    tree: ast.AST
    local_names: frozenset[str]


class Match(NamedTuple):
    """Neighboring nodes that a pattern fits, and which of its names stand for which of theirs."""

    nodes: list[ast.AST]
    renamed: dict[str, str]


@cache
def parse_module(source: str) -> ast.Module:
    """The tree of a module, in which many pieces may be looked for; it is left as it is."""
    return ast.parse(source)


def find_place(module: ast.Module, name: str) -> Place | None:
    """The function or class of this name."""
    tree: ast.AST = module
    local_names: set[str] = set()
    for part in filter(None, name.split(".")):
        definitions = [node for node in ast.walk(tree) if getattr(node, "name", None) == part]
        if not definitions:
            return None
        tree = definitions[0]
    if isinstance(tree, ast.FunctionDef):
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                local_names.add(node.arg)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                local_names.add(node.id)
    return Place(tree, frozenset(local_names))


def parse(text: str) -> list[ast.AST]:
    """An expression alone, or statements."""
    statements = ast.parse(text).body
    if len(statements) == 1 and isinstance(statements[0], ast.Expr):
        return [statements[0].value]
    return list(statements)


def fits(pattern: object, node: object, local_names: frozenset[str], renamed: dict[str, str]) -> bool:
    """Whether a node is equal to the pattern but for local names; `renamed` is filled with those."""
    if isinstance(pattern, ast.Name) and isinstance(node, ast.Name):
        known = renamed.setdefault(pattern.id, node.id)
        return known == node.id and (pattern.id == node.id or node.id in local_names)
    if isinstance(pattern, list) and isinstance(node, list):
        same_length = len(pattern) == len(node)
        return same_length and all(fits(*pair, local_names, renamed) for pair in zip(pattern, node, strict=True))
    if not isinstance(pattern, ast.AST) or type(pattern) is not type(node):
        return type(pattern) is type(node) and pattern == node
    fields = [name for name in pattern._fields if name not in ("ctx", "type_comment", "kind")]
    return all(fits(getattr(pattern, name), getattr(node, name), local_names, renamed) for name in fields)


def sequences(tree: ast.AST, length: int, *, of_statements: bool) -> Iterator[list[ast.AST]]:
    """All nodes below a tree, one by one, or so many statements that follow one another."""
    for node in ast.walk(tree):
        if not of_statements:
            yield [node]
            continue
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                for start in range(len(value) - length + 1):
                    yield value[start : start + length]


def find_match(place: Place, pattern: list[ast.AST]) -> Match | None:
    """The only place of the pattern, with its own names or else with others; None if it stands at no or many places."""
    of_statements = isinstance(pattern[0], ast.stmt)
    for local_names in (frozenset(), place.local_names):
        matches = []
        for nodes in sequences(place.tree, len(pattern), of_statements=of_statements):
            renamed: dict[str, str] = {}
            if fits(pattern, nodes, local_names, renamed):
                matches.append(Match(nodes, renamed))
        if len(matches) == 1:
            return matches[0]
    return None


def rewrite(source: str, name: str, before: str, after: str) -> str | None:
    """The source of a module in which one piece of code is replaced.

    Args:
        name: the function (`name` or `Class.name`) or class it stands in, or nothing for the whole module.
        before: an expression, or statements; local variables may have other names by now.
        after: what stands there instead, with the names of `before`.

    Returns None where there is no such place, or the piece stands there more than once or not at all.
    """
    place = find_place(parse_module(source), name)
    match = find_match(place, parse(before)) if place else None
    if match is None:
        return None
    replacement = parse(after)
    for node in replacement:
        for name in ast.walk(node):
            if isinstance(name, ast.Name):
                name.id = match.renamed.get(name.id, name.id)
    first, last = match.nodes[0], match.nodes[-1]
    text = "\n".join(map(ast.unparse, replacement))
    if isinstance(first, ast.expr) and isinstance(replacement[0], ast.expr):
        text = f"({text})"
    else:
        text = text.replace("\n", "\n" + " " * first.col_offset)
    lines = source.encode().splitlines(keepends=True)
    head = b"".join(lines[: first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]
    tail = lines[last.end_lineno - 1][last.end_col_offset :] + b"".join(lines[last.end_lineno :])
    return (head + text.encode() + tail).decode()
