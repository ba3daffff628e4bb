"""The package itself: its names, its stubs, its examples."""

from __future__ import annotations

import ast
import importlib.resources
import inspect
import pathlib
import subprocess
import sys

import pytest

import forebay
from forebay import _forebay

ROOT = pathlib.Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))

#: What Python gives every class, or what the bindings need for themselves.
OF_PYTHON = set(dir(object)) | {"__weakref__", "__module__", "__buffer__", "__release_buffer__", "__delitem__"}


def stub() -> ast.Module:
    return ast.parse((importlib.resources.files("forebay") / "_forebay.pyi").read_text())


def test_every_name_is_documented():
    for name in forebay.__all__:
        assert hasattr(forebay, name), name
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(forebay, name)), f"{name} has no words"
    for made in (forebay.Pool, forebay.Buffer, forebay.Array, forebay.Device, forebay.Stream, forebay.Arena):
        for name in dir(made):
            if not name.startswith("_"):
                assert inspect.getdoc(getattr(made, name)), f"{made.__name__}.{name} has no words"
        assert made.__module__ == "forebay"


def test_the_stubs_are_the_module():
    classes, functions = {}, set()
    for node in stub().body:
        if isinstance(node, ast.ClassDef):
            bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
            own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            classes[node.name] = own.union(*bases)
        elif isinstance(node, ast.FunctionDef):
            functions.add(node.name)
    here = {name for name, value in vars(_forebay).items() if callable(value) and not isinstance(value, type)}
    assert functions == here
    for name, value in vars(_forebay).items():
        if isinstance(value, type):
            assert set(dir(value)) - OF_PYTHON == classes[name] - OF_PYTHON, name


def test_the_stubs_have_the_arguments_of_the_module():
    for node in stub().body:
        for part in getattr(node, "body", [node]) if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(part, ast.FunctionDef) or part.name.startswith("__"):
                continue
            if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in part.decorator_list):
                continue
            owner = getattr(_forebay, node.name) if isinstance(node, ast.ClassDef) else _forebay
            theirs = [name for name in inspect.signature(getattr(owner, part.name)).parameters]
            if any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in part.decorator_list) and part.args.vararg:
                continue
            every = part.args.posonlyargs + part.args.args + part.args.kwonlyargs
            every += [part.args.kwarg] if part.args.kwarg else []
            assert [argument.arg for argument in every] == theirs, part.name


def test_the_package_says_that_it_is_typed():
    assert (importlib.resources.files("forebay") / "py.typed").is_file()
    assert forebay.library_path().endswith(".so")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example, tmp_path):
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                         check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.strip() and ran.stderr == ""


def test_there_are_examples():
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("page,least", [("docs/python.md", 6), ("README.md", 1)])
def test_what_pages_show_runs(page, least, tmp_path, monkeypatch):
    """Every block of Python in a page, one after another, as one program."""
    text = (ROOT / page).read_text()
    blocks = [part.split("```", 1)[0] for part in text.split("```python\n")[1:]]
    assert len(blocks) >= least
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        if "import torch" not in block:
            exec(compile(block, page, "exec"), names)


IN_SUBINTERPRETER = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
import sys
if sys.argv[1] == "after":
    import forebay
try:
    made = interpreters.create("legacy")
except TypeError:
    made = interpreters.create(isolated=False)
run = getattr(interpreters, "exec", None) or interpreters.run_string
run(made, sys.argv[2])
"""

IMPORTED = """
try:
    import forebay
except ImportError as error:
    print(error, flush=True)
else:
    memoryview(forebay.Pool("host").allocate(10))
"""


@pytest.mark.parametrize("when", ["first", "after"])
def test_a_subinterpreter_is_told_to_use_the_main_one(when):
    command = [sys.executable, "-c", IN_SUBINTERPRETER, when, IMPORTED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "forebay works in the main interpreter alone" in ended.stdout


def test_the_stubs_know_every_setting():
    (typed,) = (node for node in stub().body if isinstance(node, ast.ClassDef) and node.name == "_Settings")
    assert {part.target.id for part in typed.body if isinstance(part, ast.AnnAssign)} == set(forebay.settings())
