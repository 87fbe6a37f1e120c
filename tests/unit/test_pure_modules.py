"""Pure modules use no clock, no randomness, no I/O and no order of sets: what imports do not tell, by their syntax trees.

Which modules are pure says pyproject.toml (the contract `pure` of the import rules); those whose docstring says so are there.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("services", "schemas", "topics", "infra")
FORBIDDEN_CALLS = {
    *("open", "print", "input", "exec", "eval", "compile", "breakpoint", "__import__"),
    "hash",  # of a text: another in each process
}
# By their last name: `datetime.now`, `Path.cwd`, `np.random`, `uuid.uuid4`.
FORBIDDEN_ATTRIBUTES = {
    *("now", "utcnow", "today", "monotonic", "perf_counter", "time_ns", "sleep"),
    *("random", "default_rng", "uuid1", "uuid4", "uuid6", "uuid7", "urandom", "token_hex"),
    *("environ", "getenv", "read_text", "write_text", "read_bytes", "write_bytes", "tofile", "fromfile"),
}
ORDERLESS = {"set", "frozenset"}
LOSES_ORDER = {"sorted", "set", "frozenset", "min", "max", "sum", "any", "all"}
TAKES_ORDER = {"list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "reversed", "deque", "join"}


def pure_modules() -> list[str]:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [contract for contract in linter["contracts"] if contract["id"] == "pure"]
    modules: list[str] = contract["source_modules"]
    return modules


def path_of(module: str) -> Path:
    relative = Path(*module.split(".")).with_suffix(".py")
    (path,) = [ROOT / source / relative for source in SOURCES if (ROOT / source / relative).exists()]
    return path


def faults(source: str) -> list[str]:
    """What a pure module must not hold, each as "line: what"."""
    tree = ast.parse(source)
    sets = _names_of_sets(tree)
    excused = _without_order(tree)
    nodes = [node for node in ast.walk(tree) if node not in excused]
    return [f"{getattr(node, 'lineno', '')}: {fault}" for node in nodes for fault in _faults_of(node, sets)]


def _without_order(tree: ast.AST) -> list[ast.AST]:
    """Parts of comprehensions whose order is lost at once: `sorted(x for x in names)`, `{x for x in names}`."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.SetComp(generators=generators):
                found += generators
            case ast.Call(func=ast.Name(id=name), args=[ast.GeneratorExp(generators=generators), *_]) if (
                name in LOSES_ORDER
            ):
                found += generators
    return found


def _faults_of(node: ast.AST, sets: set[str]) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
            yield f"calls {name}()"
        case ast.Attribute(attr=name) if name in FORBIDDEN_ATTRIBUTES:
            yield f"uses .{name}"
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            yield "is asynchronous"
        case ast.Global(names=names):
            yield f"changes the module's {', '.join(names)}"
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated) if _is_set(iterated, sets):
            yield f"iterates over the set {ast.unparse(iterated)}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[*arguments]) if name in TAKES_ORDER:
            yield from (f"takes the order of {ast.unparse(one)}" for one in arguments if _is_set(one, sets))
        case ast.Starred(value=value) if _is_set(value, sets):
            yield f"takes the order of {ast.unparse(value)}"


def _names_of_sets(tree: ast.AST) -> set[str]:
    """Names and attributes that are annotated as sets, or are assigned one."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if _annotates_set(annotation):
                names.add(name)
            case ast.AnnAssign(target=target, annotation=annotation) if _annotates_set(annotation):
                names |= _target_names(target)
            case ast.Assign(targets=targets, value=value) if _is_set(value, set()):
                names |= {name for target in targets for name in _target_names(target)}
    return names


def _target_names(target: ast.expr) -> set[str]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
    return set()


def _annotates_set(annotation: ast.expr) -> bool:
    """`set[str]`, `frozenset[str] | None`, `Final[frozenset[str]]`; not `dict[str, set[str]]`, which is no set itself."""
    match annotation:
        case ast.Name(id=name):
            return name in ORDERLESS
        case ast.Subscript(value=ast.Name(id="Final"), slice=inner):
            return _annotates_set(inner)
        case ast.Subscript(value=value):
            return _annotates_set(value)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _annotates_set(left) or _annotates_set(right)
    return False


def _is_set(value: ast.expr, names: set[str]) -> bool:
    match value:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in ORDERLESS
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), right=right):
            return any(_is_set(side, names) or _is_keys(side) for side in (left, right))
    return False


def _is_keys(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "keys"


@pytest.mark.parametrize("module", pure_modules())
def test_a_pure_module_is_pure(module: str) -> None:
    assert faults(path_of(module).read_text(encoding="utf-8")) == []


def test_every_module_that_says_it_is_pure_is_held_to_it() -> None:
    says = set()
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if "Pure." in docstring or "Pure:" in docstring or "Pure;" in docstring:
                says.add(".".join(path.relative_to(ROOT / source).with_suffix("").parts))
    assert says
    assert says <= set(pure_modules())


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime\nat = datetime.now()",
        "import time\ntime.monotonic()",
        "time.time_ns()",
        "dice = random.random()",
        "rng = np.random.default_rng()",
        "id = uuid.uuid4()",
        "open('x')",
        "print('x')",
        "order = hash('x')",
        "home = os.environ['HOME']",
        "text = path.read_text()",
        "async def wait() -> None: ...",
        "def f() -> None:\n    global counter",
        "for x in {1, 2}: ...",
        "for x in set(names): ...",
        "ids = [x for x in frozenset(names)]",
        "ids = list({x for x in names})",
        "text = ','.join(set(names))",
        "def f(names: set[str]) -> None:\n    for name in names: ...",
        "class A:\n    names: frozenset[str] = frozenset()\ndef f(a):\n    return [x for x in a.names]",
        "names = {1, 2}\nfirst = next(iter(names))",
        "for key in a.keys() & b.keys(): ...",
        "all = (*{1, 2},)",
    ],
)
def test_what_is_not_pure_is_found(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "for x in sorted({1, 2}): ...",
        "found = x in {1, 2}",
        "def f(names: set[str]) -> bool:\n    return 'a' in names and len(names) > 1",
        "by_name: dict[str, set[str]] = {}\nfor name in by_name: ...",
        "mask = up & heard\nfor slot in flatnonzero(up & heard): ...",
        "now_ms = state.now_ms",
        "least = min(a | b)",
        "def f(names: set[str]) -> list[str]:\n    return sorted(name.lower() for name in names)",
        "def f(names: set[str]) -> set[str]:\n    return {name.lower() for name in names}",
    ],
)
def test_what_is_pure_is_left_alone(source: str) -> None:
    assert not faults(source)


def test_the_import_rules_name_every_package() -> None:
    linter: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    packages = {
        f"jobstream.{path.parent.name}"
        for source in SOURCES
        for path in (ROOT / source).glob("jobstream/*/__init__.py")
    }
    assert packages == set(linter["root_packages"])
    (layers,) = [contract["layers"] for contract in linter["contracts"] if contract["id"] == "layers"]
    assert packages == {name.strip() for layer in layers for name in layer.split("|")}
