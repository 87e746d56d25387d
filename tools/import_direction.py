"""Imports inside the package go one way; this checks it without importing anything.

Run: python -m tools.import_direction [PACKAGE_FOLDER]. Prints one line per violation; exit code 1 if there is any.

Every import statement counts, also inside functions and under `if TYPE_CHECKING`, and so do literal names given to
`importlib.import_module`. An entry of a table below is a module or package of `draftproof`; a dotted entry names that
module only. ROOT stands for the public API: names imported from `draftproof` itself.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "draftproof"
ROOT = "draftproof"

BASE = frozenset(
    "core draft keys laws params sampler_fields refusals structured validation config errors".split()
    + "noise philox race when_asked".split()
)
SAMPLING = BASE | {"sampling"}
VERIFY = SAMPLING | {"verify"}
GRAMMAR = SAMPLING | {"grammar"}
ENGINE = VERIFY | GRAMMAR | {"drafters", "targets", "engine", "kernels"}
TOP = ENGINE | {"outputs", "chat", "defaults", "llm", ROOT}

MAY_IMPORT: dict[str, frozenset[str]] = {
    **{name: BASE for name in BASE},
    "sampling": SAMPLING | {"kernels"},
    "verify": VERIFY | {"kernels"},
    "grammar": GRAMMAR,
    "kernels": BASE | {"kernels"},
    # A draft model is a target of the drafter's own: loaded, and driven through the interface alone. Learned drafters
    # keep keys and values of their own in the targets' cache, and know the embedded model, which we have trained for.
    # On the device their layers run as the targets' static forwards do.
    "drafters": VERIFY
    | {"grammar", "drafters"}
    | {f"targets.{name}" for name in ("base", "load", "cache", "cpu_linear", "dtype", "masks", "norms", "embedded")}
    | {f"targets.{name}" for name in ("half_linear", "products")}
    | {f"targets.static.{name}" for name in ("attention", "following", "operations", "steps", "tables")},
    "targets": VERIFY | {"targets"},
    "engine": ENGINE,
    "outputs": ENGINE | {"outputs", "chat"},
    "defaults": BASE,
    "chat": BASE | {"chat", "outputs"},
    "llm": ENGINE | {"outputs", "chat", "defaults", "llm"},
    "requests": TOP | {"requests", "refusals"},
    "audit": frozenset({"audit", "verify", "sampling", "targets.toy", ROOT}),
    "render": TOP | {"render"},
    "serve": TOP | {"serve", "render"},
    "bench": TOP | {"bench", "render"},
    "train": TOP | {"train", "render"},
    "integrations": TOP | {"integrations"},
    # The command line is above all of them: each verb starts one.
    "cli": TOP | {"cli", "render", "serve", "bench", "train", "audit"},
    "__main__": frozenset({"cli"}),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """`importer` (a file and line) imports `imported` (a dotted name below the package)."""

    importer: str
    line: int
    imported: str
    reason: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line}: imports {self.imported}: {self.reason}"


def check(folder: Path) -> list[Violation]:
    """Every import below `folder` (the package's own folder) that the tables above do not allow."""
    violations = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        top = parts[0]
        if top == "__init__":
            # The root re-exports the public API, so it may name every module.
            continue
        where = path.relative_to(folder.parent).as_posix()
        allowed = MAY_IMPORT.get(top)
        if allowed is None:
            violations.append(Violation(where, 1, top, "this module has no place in tools/import_direction.py"))
            continue
        for line, imported in _imports(path, parts, folder):
            if not _is_allowed(imported, allowed):
                reason = f"{top} may import only {', '.join(sorted(allowed))}"
                violations.append(Violation(where, line, imported, reason))
    return violations


def _is_allowed(imported: str, allowed: frozenset[str]) -> bool:
    prefixes = imported.split(".")
    return any(".".join(prefixes[: length + 1]) in allowed for length in range(len(prefixes)))


def _imports(path: Path, parts: tuple[str, ...], folder: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name below the package, or ROOT) of each import of the package by the file at `path`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == PACKAGE or alias.name.startswith(PACKAGE + "."):
                    yield node.lineno, alias.name.removeprefix(PACKAGE + ".")
        elif isinstance(node, ast.ImportFrom):
            yield from _from_imports(node, parts, folder)
        elif isinstance(node, ast.Call):
            name = _dynamic_import(node)
            if name is not None:
                yield node.lineno, name


def _from_imports(node: ast.ImportFrom, parts: tuple[str, ...], folder: Path) -> Iterator[tuple[int, str]]:
    if node.level == 0:
        source = (node.module or "").split(".")
        if source[0] != PACKAGE:
            return
        base = source[1:]
    else:
        # parts[:-1] is the file's package, for an `__init__` as well: one dot means that package.
        base = list(parts[: len(parts) - node.level]) + (node.module.split(".") if node.module else [])
    for alias in node.names:
        below = [*base, alias.name]
        target = folder.joinpath(*below)
        if target.is_dir() or target.with_suffix(".py").is_file() or (not base and alias.name in MAY_IMPORT):
            yield node.lineno, ".".join(below)
        elif base:
            yield node.lineno, ".".join(base)
        elif alias.name != "__version__":
            yield node.lineno, ROOT


def _dynamic_import(node: ast.Call) -> str | None:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in ("import_module", "__import__") or not node.args:
        return None
    argument = node.args[0]
    if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
        return None
    if argument.value != PACKAGE and not argument.value.startswith(PACKAGE + "."):
        return None
    return argument.value.removeprefix(PACKAGE + ".")


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "src" / PACKAGE
    violations = check(folder)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
