"""forebay inside PyTorch without a change to the program: the variable FOREBAY_TORCH, and python -m forebay.torch.

These run the installed package, as users do: the hook lies in site-packages. Most use a torch that is a few lines long, and
an install that says what it did; the last ones real PyTorch over the stand-in for CUDA.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap

import faces
import pytest
import real_torch

PROGRAMS = faces.HERE / "programs"
PAGE = faces.ROOT / "docs" / "pytorch.md"
TRAINER = faces.ROOT / "xtask" / "gpu" / "trainer.py"

#: A PyTorch that cannot have forebay: it is built without CUDA.
CPU = """
import types
__version__ = "2.11.0+cpu"
cuda = types.SimpleNamespace(is_initialized=lambda: False)
version = types.SimpleNamespace(hip=None)
_C = types.SimpleNamespace()
"""

#: One in which an install says where it happened, and whether the import was over.
SAYS = """
import os, sys
import forebay.torch
def install(**settings):
    print("installed", os.getpid(), getattr(sys.modules["torch"], "loaded", False), settings, flush=True)
forebay.torch.install = install
loaded = True
"""


@pytest.fixture
def python(tmp_path):
    """Runs Python with a torch of those few lines: what it said, on both streams."""

    def run(*words, torch=CPU, mode="1", status=0, **variables):
        package = tmp_path / "packages" / "torch"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(torch)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("FOREBAY_TORCH", "PYTHON"))}
        env["PYTHONPATH"] = str(package.parent)
        env.update({} if mode is None else {"FOREBAY_TORCH": mode}, **variables)
        words = [textwrap.dedent(word) if "\n" in word else word for word in words]
        ran = subprocess.run([sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ran.returncode == status, f"status {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran

    return run


def test_the_wheel_brings_the_hook():
    files = {file.name: file for file in importlib.metadata.files("forebay")}
    for name in ("forebay-torch.pth", "_forebay_torch.py"):
        assert files[name].parts == (name,), "beside the package, in site-packages"
        assert files[name].locate().is_file()


@pytest.mark.parametrize("mode", [None, "", "0"])
def test_it_is_off_unless_the_variable_is_set(python, mode):
    script = """
    import sys
    finders = {type(finder).__module__ for finder in sys.meta_path}
    import torch
    print("forebay" in sys.modules, "_forebay_torch" in finders, "_forebay_torch" in sys.modules)
    """
    # For 0 the hook is read, and stands back.
    assert python("-c", script, mode=mode, torch="").stdout == f"False False {mode == '0'}\n"


def test_a_program_without_torch_is_left_alone(python):
    for mode in ("1", "fallback", "nonsense"):
        said = python("-c", "import sys; print('forebay' in sys.modules, 'torch' in sys.modules)", mode=mode)
        assert (said.stdout, said.stderr) == ("False False\n", "")
        said = python("-m", "pip", "--version", mode=mode)
        assert said.stdout.startswith("pip ") and not said.stderr
    # Looking whether there is a PyTorch is no import of it.
    script = "import importlib.util, sys; print(bool(importlib.util.find_spec('torch')), 'forebay' in sys.modules)"
    assert python("-c", script).stdout == "True False\n"


def test_it_is_installed_once_and_right_after_the_import(python):
    script = """
    import os, sys
    from importlib import import_module
    before = list(sys.meta_path)
    import torch
    import torch
    assert import_module("torch") is torch and "exec_module" not in vars(torch.__loader__)
    assert [finder for finder in before if finder not in sys.meta_path] == [before[0]], "nothing stays behind"
    print(os.getpid())
    """
    said = python("-c", script, torch=SAYS)
    first, pid = said.stdout.splitlines()
    assert first == f"installed {pid} True {{}}" and not said.stderr


def test_every_child_process_has_it_too(python, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, subprocess, sys
            def work():
                import torch
            if __name__ == "__main__":
                for how in ("fork", "forkserver", "spawn"):
                    child = multiprocessing.get_context(how).Process(target=work)
                    child.start()
                    child.join()
                    assert child.exitcode == 0
                subprocess.run([sys.executable, "-c", "import torch"], check=True)
                import torch
            """
        )
    )
    lines = python("program.py", torch=SAYS).stdout.splitlines()
    assert len(lines) == 5 == len({line.split()[1] for line in lines}), lines
    assert all(" True " in line for line in lines)


def test_the_programs_own_install_keeps_its_arguments(python):
    script = """
    import forebay.torch, sys
    # Calls itself while it is called: the hook's call would wait for ever for the program's.
    def _install(*arguments):
        import torch
        print("own", arguments)
        forebay.torch._installed = True
    forebay.torch._install = _install
    forebay.torch.install(0, pinned=False)
    print(forebay.torch.is_installed())
    """
    assert python("-c", script, torch="").stdout == "own (0, False, False, {})\nTrue\n"


def test_where_it_cannot_be_installed_the_import_fails_and_says_why(python):
    script = """
    import forebay
    for attempt in range(2):
        try:
            try:
                import torch
            except ImportError:
                raise AssertionError("it reads as if there were no PyTorch")
        except forebay.InstallError as error:
            print(error)
    """
    # As real PyTorch, it cannot be imported twice.
    once = "import sys\nassert not hasattr(sys, 'once')\nsys.once = True\n"
    first, second = python("-c", script, torch=CPU + once).stdout.splitlines()
    assert first == second
    assert first.startswith("this PyTorch is built without CUDA") and "FOREBAY_TORCH=fallback" in first
    said = python("-c", "import torch", status=1).stderr
    assert said.splitlines()[-1] == f"forebay.errors.InstallError: {first}"


def test_a_package_that_cannot_be_loaded_is_no_missing_pytorch(python, tmp_path):
    (tmp_path / "packages" / "forebay").mkdir(parents=True)
    (tmp_path / "packages" / "forebay" / "__init__.py").write_text("raise ImportError('no such symbol')")
    said = python("-c", "import torch", status=1).stderr.splitlines()[-1]
    assert said.startswith("RuntimeError: no such symbol"), said
    said = python("-c", "import torch; print(torch.__version__)", mode="fallback")
    assert said.stdout == "2.11.0+cpu\n" and "no such symbol" in said.stderr


@pytest.mark.parametrize("mode", ["yes", "2", "Fallback", " 1"])
def test_another_value_is_refused_with_those_that_are_allowed(python, mode):
    said = python("-c", "import torch", mode=mode, status=1).stderr.splitlines()[-1]
    assert said.startswith(f"ValueError: FOREBAY_TORCH is {mode!r}"), said
    assert all(f"{value}: " in said for value in ("1", "fallback", "0")), said


def test_a_fallback_warns_once_for_all_processes_of_a_job(python, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, subprocess, sys
            import torch
            def work():
                import torch
                assert torch.__version__
            if __name__ == "__main__":
                for how in ("spawn", "fork"):
                    children = [multiprocessing.get_context(how).Process(target=work) for _ in range(2)]
                    [child.start() for child in children]
                    [child.join() for child in children]
                    assert not any(child.exitcode for child in children)
                subprocess.run([sys.executable, "-c", "import torch"], check=True)
            """
        )
    )
    said = python("program.py", mode="fallback").stderr
    assert said.count("RuntimeWarning") == 1, said
    line = said.splitlines()[0]
    assert re.match(r".*program\.py:3: RuntimeWarning: PyTorch's own allocator serves", line), line
    assert "built without CUDA" in line
    assert "RuntimeWarning" in python("-W", "error", "-c", "import torch", mode="fallback", status=1).stderr


def test_without_a_driver_nothing_is_installed(python):
    torch = CPU + "_C._cuda_customAllocator = None\n"
    said = python("-c", "import torch", torch=torch, status=1, FOREBAY_CUDA_DRIVER="/no/driver.so").stderr.splitlines()[-1]
    assert "there is no NVIDIA driver here" in said and "/no/driver.so" in said, said


SHOWS = """
import json, os, sys
import multiprocessing
print(json.dumps([sys.argv, __name__, os.environ.get("FOREBAY_TORCH"), sys.flags.dev_mode, sys.warnoptions,
    sys.stdout.write_through, sys.path[0], "forebay" in sys.modules]))
"""


def test_the_runner_starts_a_program_as_python_does(python, tmp_path):
    (tmp_path / "program.py").write_text(SHOWS)
    by_python = json.loads(python("-u", "-W", "ignore", "-X", "dev", "program.py", "-x", "m").stdout)
    apart, joined = ["-u", "-W", "ignore", "-X", "dev", "-m", "forebay.torch"], ["-W", "ignore", "-Xdev", "-um", "forebay.torch"]
    for words in (apart, joined):
        for mode in (None, "0", "", "1"):
            assert json.loads(python(*words, "program.py", "-x", "m", mode=mode).stdout) == by_python, words
    assert by_python[0] == ["program.py", "-x", "m"] and by_python[2] == "1"
    told = json.loads(python("-mforebay.torch", "-m", "program", "-m", mode="fallback").stdout)
    assert told[0][1:] == ["-m"] and told[1:3] == ["__main__", "fallback"] and told[7] is False
    python("-m", "forebay.torch", "-c", "raise SystemExit(7)", status=7)
    python("-m", "forebay.torch", "-c", "import torch", torch=SAYS, mode=None)


def test_the_runner_says_how_it_is_used_and_what_it_lacks(python):
    assert python("-m", "forebay.torch", status=2).stderr.startswith("usage: python -m forebay.torch PROGRAM.py")
    assert "FOREBAY_TORCH=fallback" in python("-m", "forebay.torch", "--help").stdout
    # Without site-packages there is no hook.
    import forebay

    packages = os.path.dirname(os.path.dirname(forebay.__file__))
    said = python("-S", "-m", "forebay.torch", "program.py", status=1, PYTHONPATH=packages).stderr
    assert "nothing was started: forebay-torch.pth is not in the site-packages" in said, said


# Real PyTorch, over the stand-in for CUDA.


@pytest.fixture
def shell(torch, tmp_path):
    """Runs a line of the shell beside train.py, where `python` and `torchrun` have real PyTorch: what it said."""
    for name, module in (("python", ""), ("torchrun", "-m torch.distributed.run ")):
        shim = tmp_path / "bin" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        shim.chmod(0o755)
    small = ["--steps", "3", "--layers", "1", "--width", "64", "--length", "32"]
    (tmp_path / "train.py").write_text(
        f"import os, sys; sys.path.insert(0, {str(TRAINER.parent)!r})\n"
        f"sys.argv[1:] = {small} + ['--backend', 'gloo'] * ('WORLD_SIZE' in os.environ)\n"
        "import trainer\nif __name__ == '__main__':\n    trainer.main()\n"
    )

    def run(line, gpus=4, status=0, **variables):
        env = {key: value for key, value in os.environ.items() if not key.startswith(("FOREBAY", "PYTORCH", "PYTHON"))}
        env.update(real_torch._environment(torch.site, gpus, 1024), **variables)
        env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
        ran = subprocess.run(["bash", "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert ran.returncode == status, f"{line}: status {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran

    return run


def need(shell, package):
    found = shell(f"python -c 'import importlib.util as util; print(util.find_spec(\"{package}\"))'", 1).stdout
    if found == "None\n":
        pytest.skip(f"there is no {package}: pip install --target the folder deps beside the one with PyTorch")


def trained(ran):
    """What each rank of train.py told."""
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"schema"')]


def recipes():
    """The lines of the shell under "Without a change to the program"."""
    block = PAGE.read_text().split("<!-- recipes -->")[1].split("<!-- end of recipes -->")[0]
    return [line for line in block.splitlines() if "python" in line or "torchrun" in line]


def test_the_page_has_recipes():
    assert len(recipes()) == 5


def test_what_the_page_shows_runs(shell, tmp_path):
    (block,) = [part.split("```", 1)[0] for part in PAGE.read_text().split("```python\n")[1:]]
    (tmp_path / "page.py").write_text(block)
    said = shell("python page.py", 1).stdout
    assert "PyTorch CUDA memory summary" in said and "CUDA out of memory. Tried to allocate" in said


@pytest.mark.parametrize("line", recipes(), ids=range(len(recipes())))
def test_a_recipe_of_the_page_trains_with_forebay(shell, line):
    need(shell, "transformers")
    # One process with several GPUs would have Trainer use DataParallel, which the stand-in lacks.
    ranks = 4 if "torchrun" in line else 1
    told = trained(shell(line, ranks))
    assert sorted(row["rank"] for row in told) == list(range(ranks)) and {row["ranks"] for row in told} == {ranks}
    for row in told:
        assert row["allocator"] == "forebay" and len(row["losses"]) == 3, row
        assert row["device"] == f"cuda:{row['rank']}" and 0 < row["allocated_peak_bytes"] <= row["reserved_peak_bytes"]


def test_without_the_variable_all_is_as_before(shell):
    need(shell, "transformers")
    (told,) = trained(shell("python train.py", 1))
    assert told["allocator"] == "native"


def test_ranks_go_on_without_forebays_library_and_warn_once(shell):
    line = f"torchrun --nproc-per-node 2 {PROGRAMS / 'ranks.py'} gloo"
    said = shell(line, FOREBAY_TORCH="fallback", FOREBAY_LIBRARY="/no/library.so")
    assert sorted(said.stdout.splitlines()) == [f"rank {rank} cuda:{rank} native True" for rank in range(2)]
    assert said.stderr.count("PyTorch's own allocator serves") == 1 and "/no/library.so" in said.stderr, said.stderr
    said = shell(line, FOREBAY_TORCH="1", FOREBAY_LIBRARY="/no/library.so", status=1)
    assert "forebay.errors.InstallError: nothing was installed" in said.stderr and not said.stdout


def test_ranks_of_torchrun_have_a_gpu_each(shell):
    said = shell(f"torchrun --nproc-per-node 4 {PROGRAMS / 'ranks.py'} gloo", FOREBAY_TORCH="1")
    assert sorted(said.stdout.splitlines()) == [f"rank {rank} cuda:{rank} forebay True" for rank in range(4)]


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_workers_of_an_engine_have_a_gpu_each(shell, how):
    said = shell(f"python {PROGRAMS / 'workers.py'} {how}", FOREBAY_TORCH="1")
    assert sorted(said.stdout.splitlines()) == [f"rank {rank} cuda:{rank} forebay True" for rank in range(4)]


@pytest.mark.parametrize("gpus", [1, 2])
def test_lightning_trains_with_forebay(shell, gpus):
    need(shell, "lightning")
    said = shell(f"python {PROGRAMS / 'fit.py'} {gpus}", gpus, FOREBAY_TORCH="1")
    rows = sorted(line for line in said.stdout.splitlines() if line.startswith("rank "))
    assert rows == [f"rank {rank} cuda:{rank} forebay True" for rank in range(gpus)]
