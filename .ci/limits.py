"""Hold the sizes of the architecture: 400 lines a file, 60 a function; exceptions say why."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 400
FUNCTION_LINES = 60


def functions(tree: ast.AST, prefix: str = "") -> list[tuple[str, int]]:
    """Return the qualified name and length of every function in a syntax tree."""
    found: list[tuple[str, int]] = []
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}" if prefix else node.name
            if not isinstance(node, ast.ClassDef):
                found.append((name, (node.end_lineno or node.lineno) - node.lineno + 1))
        found += functions(node, name)
    return found


def main() -> int:
    """Print every file and function past its limit that no exception covers."""
    exceptions = tomllib.loads((ROOT / ".ci" / "limits.toml").read_text())
    reasons: dict[str, str] = exceptions.get("exceptions", {})
    unused = set(reasons)
    problems: list[str] = []
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        text = path.read_text()
        relative = str(path.relative_to(ROOT / "packages"))
        sizes = [(relative, len(text.splitlines()), FILE_LINES)]
        sizes += [
            (f"{relative}:{name}", lines, FUNCTION_LINES)
            for name, lines in functions(ast.parse(text))
        ]
        for name, lines, limit in sizes:
            if lines > limit and name in reasons:
                unused.discard(name)
            elif lines > limit:
                problems.append(f"{name}: {lines} lines, at most {limit}")
    problems += [f"{name}: listed as an exception, but not needed" for name in sorted(unused)]
    print("\n".join(problems) or "sizes of files and functions: kept")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
