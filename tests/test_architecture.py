"""The rules that keep the source simple, read from the source itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "nightschool"

# In import order: a module imports only from its own folder and from those above it.
ORDER = (
    "types", "errors", "config", "client", "store", "jobs", "access", "rendering", "upstream", "valuation", "releases",
    "feedback", "gateway", "models", "engine", "imports", "envs", "guards", "mining", "objectives", "curation",
    "training", "planning", "gate", "loop", "dashboard", "cli", "demo", "__main__",
)  # fmt: skip
BACKWARD = {("cli/demo.py", "demo"): "the command that plays the demo"}

MODEL_FOLDERS = ("models", "engine", "training")
MODEL_PACKAGES = ("torch", "transformers", "peft", "accelerate")
UNSAFE_PACKAGES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")

MODULE_LINES, FUNCTION_LINES, LOOP_LINES, PARAMETERS, ATTRIBUTES, NESTING = 500, 60, 120, 6, 12, 4
LONG_FUNCTIONS = {"training/loop.py": LOOP_LINES}
MANY_PARAMETERS = {
    "cli/up.py up": "each parameter is one option of the command line",
    "cli/plan.py plan": "each parameter is one option of the command line",
    "cli/train.py train": "each parameter is one option of the command line",
    "dashboard/intervals.py row": "an interval is three numbers",
    "releases/aliases.py promote": "the words of a promotion, all but three with defaults",
    "training/attention.py tree_attention": "the signature the model library calls",
}
MANY_FIELDS = {
    "client.py Said": "the body of a feedback request",
    "curation/turns.py Turn": "what curation reads of an exchange, in one query",
    "engine/scheduler.py Scheduler": "the running batch and its counters",
    "feedback/body.py FeedbackBody": "the body of a feedback request",
    "feedback/values.py NewFeedback": "one judgement with everything said about it",
    "gateway/capture.py Capture": "everything seen of one exchange",
    "gateway/settings.py GatewaySettings": "what the gateway is told, one field a setting",
    "gateway/recorder.py Recorder": "the batch that waits, its thread, and how a capture is read",
    "store/records.py Caller": "everything that a request says of itself",
    "store/records.py Record": "everything stored of one exchange",
    "types.py Exchange": "one row of the store, whole",
    "types.py Feedback": "one row of the store, whole",
    "types.py Trajectory": "one branch with everything said about it",
    "types.py Suite": "one row of a verdict, whole",
}
WRONG_WORDS = {
    "helper", "helpers", "util", "utils", "manager", "registry", "behaviour", "episode", "scaffold", "gym",
}  # fmt: skip
WRONG_NAMES = {
    "mask": "completion_mask, loss_mask or attention_mask",
    "eps": "epsilon, or clip_low and clip_high",
    "lag": "staleness",
    "num_generations": "group_size",
    "old_logprobs": "behavior_logprobs",
    "inference_logprobs": "behavior_logprobs",
    "base_logprobs": "reference_logprobs",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    """Every source file by its path below the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 50, "the package was not found"
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def folder_of(path: str) -> str:
    return Path(path).parts[0].removesuffix(".py")


def imports(path: str) -> Iterator[tuple[str, int]]:
    """Absolute names of everything a file imports, also inside functions; `from a import b` gives `a` and `a.b`."""
    package = ("nightschool", *Path(path).parts[:-1])
    for node in ast.walk(modules()[path]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield name, node.lineno
            yield from ((f"{name}.{alias.name}", node.lineno) for alias in node.names)


def functions() -> Iterator[tuple[str, Function]]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield path, node


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node


def test_every_folder_stands_in_the_order():
    assert {folder_of(path) for path in modules()} - {"__init__"} <= set(ORDER)


def test_no_import_points_backward():
    wrong = []
    for path in modules():
        here = folder_of(path)
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] != "nightschool" or len(parts) < 2 or parts[1] not in ORDER or here == "__init__":
                continue
            allowed = ORDER.index(parts[1]) <= ORDER.index(here) or (path, parts[1]) in BACKWARD
            if not allowed:
                wrong.append(f"{path}:{line} imports {name}")
    assert wrong == [], "\n".join(wrong)


def test_the_simulator_is_known_to_nobody_but_its_command():
    """Learner and gate must not see the shop's hidden state: also not by a name in a string."""
    wrong = []
    for path, tree in modules().items():
        if folder_of(path) == "demo" or path == "cli/demo.py":
            continue
        wrong += [f"{path}:{line}" for name, line in imports(path) if name.startswith("nightschool.demo")]
        strings = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        wrong += [f"{path}:{node.lineno}" for node in strings if "nightschool.demo" in node.value]
    assert wrong == [], "\n".join(wrong)


def test_torch_is_imported_by_models_engine_and_training_alone():
    wrong = [
        f"{path}:{line} imports {name}"
        for path in modules()
        if folder_of(path) not in MODEL_FOLDERS
        for name, line in imports(path)
        if name.split(".")[0] in MODEL_PACKAGES
    ]
    assert wrong == [], "\n".join(wrong)


def test_nothing_else_starts_torch():
    """At import time, through any detour: checked in a process of its own, which names the first culprit."""
    names = [
        "nightschool." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in modules()
        if folder_of(path) not in MODEL_FOLDERS and "migrations/" not in path and not path.endswith("__main__.py")
    ]
    code = (
        "import sys, importlib\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    found = [package for package in {MODEL_PACKAGES!r} if package in sys.modules]\n"
        "    assert not found, (name, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_nothing_unpickles_or_runs_foreign_code():
    wrong = []
    for path, tree in modules().items():
        wrong += [f"{path}:{line} {name}" for name, line in imports(path) if name.split(".")[0] in UNSAFE_PACKAGES]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func) in ("torch.load", "numpy.load", "np.load", "eval", "exec", "os.system"):
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node.func)}")
            for word in node.keywords:
                truthy = isinstance(word.value, ast.Constant) and word.value.value is True
                if word.arg in ("trust_remote_code", "shell", "allow_pickle") and truthy:
                    wrong.append(f"{path}:{node.lineno} {word.arg}=True")
    assert wrong == [], "\n".join(wrong)


def test_modules_are_short():
    lengths = {path: len((SOURCE / path).read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: count for path, count in lengths.items() if count > MODULE_LINES} == {}
    assert sorted(lengths.values())[len(lengths) // 2] <= 150


def test_functions_are_short():
    lengths = [
        (
            f"{path}:{node.lineno} {node.name}",
            node.end_lineno - node.lineno + 1,
            LONG_FUNCTIONS.get(path, FUNCTION_LINES),
        )
        for path, node in functions()
        if node.end_lineno is not None
    ]
    assert [(where, lines) for where, lines, most in lengths if lines > most] == []
    assert sum(lines > 50 for _, lines, _ in lengths) <= 0.03 * len(lengths)


def test_functions_take_few_parameters():
    wrong = []
    for path, node in functions():
        given = node.args
        count = sum(
            argument.arg not in ("self", "cls") for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)
        )
        if count > PARAMETERS and f"{path} {node.name}" not in MANY_PARAMETERS:
            wrong.append(f"{path}:{node.lineno} {node.name} takes {count}")
    assert wrong == [], "\n".join(wrong)


def test_classes_hold_few_attributes():
    wrong = []
    for path, node in classes():
        count = len(attributes(node))
        if count > ATTRIBUTES and f"{path} {node.name}" not in MANY_FIELDS:
            wrong.append(f"{path}:{node.lineno} {node.name} has {count}")
    assert wrong == [], "\n".join(wrong)


def attributes(node: ast.ClassDef) -> set[str]:
    """Fields declared in the class body, and what methods put on `self`."""
    declared = {
        line.target.id for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            declared.add(inner.attr)
    return declared


def test_blocks_are_not_nested_deeply():
    wrong = [f"{path}:{node.lineno} {node.name}" for path, node in functions() if depth(node) > NESTING]
    assert wrong == [], "\n".join(wrong)


def depth(node: ast.AST) -> int:
    """Blocks inside each other. `elif` and a block of its own function do not count."""
    deepest = 0
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        chained = name == "orelse" and isinstance(node, ast.If) and len(children) == 1
        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, (*Function.__args__, ast.ClassDef)):
                continue
            opens = isinstance(child, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith))
            deepest = max(deepest, depth(child) + (opens and not (chained and isinstance(child, ast.If))))
    return deepest


def test_names_use_the_vocabulary():
    wrong = []
    for path, tree in modules().items():
        names = [(part, 1) for part in Path(path).with_suffix("").parts]
        names += [(name, line) for name, line in identifiers(tree)]
        for name, line in names:
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
            if words & WRONG_WORDS:
                wrong.append(f"{path}:{line} {name}")
            if name in WRONG_NAMES:
                wrong.append(f"{path}:{line} {name}: say {WRONG_NAMES[name]}")
    assert wrong == [], "\n".join(wrong)


def identifiers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names that a file gives: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (*Function.__args__, ast.ClassDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_only_one_level_of_inheritance():
    """A class of ours may extend a library's class, a Protocol or an error; not one that extends another of ours."""
    bases = {(path, node.name): [ast.unparse(base) for base in node.bases] for path, node in classes()}
    wrong = [
        f"{path} {name} → {parent} → {grand}"
        for (path, name), parents in bases.items()
        for parent in parents
        for grand in bases.get((path, parent), [])
        if (path, grand) in bases and path != "errors.py"
    ]
    assert wrong == [], "\n".join(wrong)


def test_the_rules_would_notice():
    """The checks above look at something: each exception is needed, and each measure finds a made-up offender."""
    tree = ast.parse("def f(self, a):\n if a:\n  for b in a:\n   while b:\n    with b:\n     if b: pass")
    assert depth(tree.body[0]) == 5
    assert depth(ast.parse("def f(a):\n if a: pass\n elif b: pass\n elif c: pass").body[0]) == 1
    assert attributes(ast.parse("class A:\n x: int\n def f(self): self.y = 1").body[0]) == {"x", "y"}
    named = {f"{path} {node.name}" for path, node in (*functions(), *classes())}
    assert set(MANY_PARAMETERS) | set(MANY_FIELDS) <= named
    for path, target in BACKWARD:
        assert any(name.startswith(f"nightschool.{target}") for name, _ in imports(path))
