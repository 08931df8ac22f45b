"""Draws the sample of a subject's mutants by cosmic-ray; runs in the environment that holds it.

    python mutants.py ROOT SEED COUNT MODULE...

prints one JSON object a mutant. The order of the draw is that of digests of what is changed, not of where it stands:
a line that is added or moved, to another file as well, leaves the rest of the sample as it was.
"""

import ast
import difflib
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

# What is left out says nothing about a check: an operator of another type or a decorator less breaks what is imported,
# an identity in an equality's place depends on what an interpreter shares, and `<` for `==` is noticed by anything.
_KINDS = re.compile(
    r"ReplaceComparisonOperator_(Eq_(NotEq|LtE|GtE)|NotEq_(Eq|Lt|Gt)|Lt_(LtE|GtE)|LtE_(Lt|Gt)|Gt_(GtE|LtE)|GtE_(Gt|Lt))$"
    r"|ReplaceComparisonOperator_(Is_IsNot|IsNot_Is)$"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mod|Mod_FloorDiv|BitAnd_BitOr|BitOr_BitAnd)$"
    r"|ReplaceUnaryOperator_(Delete_USub|Delete_Not)|AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ExceptionReplacer"
    r"|NumberReplacer|ZeroIterationForLoop"
)


def candidates(source: str) -> Iterator[dict[str, Any]]:
    """Yield every mutant of a module."""
    tree = get_ast(source)
    left_out = [(n.lineno, n.end_lineno, n.col_offset, n.end_col_offset) for n in _left_out(ast.parse(source))]
    for name in operator_names():
        short = name.removeprefix("core/")
        if not _KINDS.match(short):
            continue
        operator = get_operator(name)()
        places = [(node, *place) for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
        for occurrence, (node, (line, column), _) in enumerate(places):
            if not any(_within(line, column, *place) for place in left_out):
                definition = ASTQuery(node).get_definition_name()
                yield {"operator": short, "occurrence": occurrence, "place": (line, column), "definition": definition}


def _left_out(tree: ast.AST) -> Iterator[Any]:
    """Yield annotations, which decide nothing, and what is put into words."""
    for node in ast.walk(tree):
        held = (getattr(node, "annotation", None), getattr(node, "returns", None))
        yield from (each for each in (*held, node if isinstance(node, ast.JoinedStr) else None) if each is not None)


def _within(line: int, column: int, first: int, last: int, begin: int, end: int) -> bool:
    return (first, begin) <= (line, column) < (last, end)


def mutated(source: str, operator: str, occurrence: int) -> tuple[str, str, str]:
    """Return the whole mutant, the lines that it changes, and what stands in their place."""
    made = mutate_code(source, get_operator(f"core/{operator}")(), occurrence)
    lines = difflib.ndiff(source.splitlines(), made.splitlines())
    changed = [line for line in lines if line[:2] in ("- ", "+ ")]
    before, after = (" ".join(line[2:].strip() for line in changed if line[0] == sign) for sign in "-+")
    return made, before, after


def sample(root: Path, seed: str, count: int, modules: list[str]) -> Iterator[dict[str, Any]]:
    """Yield so many mutants, at most one of each place."""
    sources = {module: (root / module).read_text(encoding="utf-8") for module in modules}
    drawn, seen = [], Counter()
    for module, source in sources.items():
        lines = source.splitlines()
        for each in candidates(source):
            line, column = each["place"]
            text = lines[line - 1].strip()
            what = (seed, each["operator"], each["definition"], text)
            # Equal changes of equal lines are told apart by their number.
            seen[what] += 1
            digest = hashlib.sha256(json.dumps((*what, seen[what])).encode()).hexdigest()
            drawn.append((digest, module, (line, column), each))
    taken = set()
    for _, module, place, each in sorted(drawn, key=lambda entry: entry[0]):
        if len(taken) < count and (module, place) not in taken:
            taken.add((module, place))
            whole, before, after = mutated(sources[module], each["operator"], each["occurrence"])
            yield {
                "module": module,
                "definition": each["definition"] or "",
                "operator": each["operator"],
                "before": before,
                "after": after,
                "content": whole,
            }


if __name__ == "__main__":
    for mutant in sample(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]):
        print(json.dumps(mutant))
