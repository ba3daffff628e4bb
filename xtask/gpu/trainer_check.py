"""FOREBAY_TORCH and an untouched program: trainer.py, by Hugging Face's Trainer, natively and with forebay.

usage: trainer_check.py [--wheel WHEEL | --package FOLDER] [--steps 30] [-- ARGUMENT...]    (for trainer.py)

The hook lies in site-packages, so forebay is installed into a fresh environment over the packages of this Python: by pip
from a wheel; else from the folder `python` of the bundle, with the hook beside it. The program runs there alone and by
torchrun with one rank, each with PyTorch's own allocator and with FOREBAY_TORCH=1, with two DataLoader workers and pinned
batches. A witness in that environment, not the program, asks forebay at the end of the process what it served.

Prints a JSON object for each run, and one that compares them. Status 0 where forebay served every tensor with the variable,
was not even imported without it, losses and final weights are the same as without it, and losses fell; 1 where not; 3 where a package is missing.
"""

import argparse
import json
import os
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import bare

HERE = Path(__file__).resolve().parent

#: At the end of each process that used the GPU, unless it is a forked worker: what forebay knows of it.
WITNESS = '''
import atexit, json, os, sys

def tell():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    told = {"imported": "forebay" in sys.modules, "installed": False}
    face = sys.modules.get("forebay.torch")
    if face and face.is_installed():
        statistics = face._process.statistics(torch.cuda.current_device())["statistics"]
        told.update(installed=True, pinned_bytes=torch.cuda.host_memory_stats().get("allocated_bytes.allocated", 0))
        told.update((key, statistics[key]) for key in ("allocations", "peak_out_bytes", "peak_held_bytes", "live_bytes"))
    with open(os.path.join(os.environ["WITNESS"], f"{os.getpid()}.json"), "w") as file:
        json.dump(told, file)

atexit.register(tell)
'''


def environment(folder, options):
    """A Python with forebay installed as people have it, and all packages of this one. Its interpreter, and from what."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    outside = [*site.getsitepackages(), site.getusersitepackages()]
    if not options.wheel:
        for hook in (options.package / "startup" / "platlib").iterdir():
            (packages / hook.name).write_bytes(hook.read_bytes())
        outside.insert(0, str(options.package))
    # Behind what is installed here. pip is among it.
    (packages / "outside.pth").write_text("".join(f"{path}\n" for path in outside))
    if options.wheel:
        command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", options.wheel]
        subprocess.run([*command, "--disable-pip-version-check"], check=True)
    (packages / "witness.pth").write_text("import os; os.environ.get('WITNESS') and __import__('witness')\n")
    (packages / "witness.py").write_text(WITNESS)
    return python


def run(python, mode, options):
    """One run of the program: what it printed, and what the witness saw."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("FOREBAY", "PYTORCH"))}
    env |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "4"}
    env |= {key: value for key, value in os.environ.items() if key.startswith(("FOREBAY_CUDA_DRIVER", "FOREBAY_FAKE"))}
    if mode.startswith("forebay"):
        env["FOREBAY_TORCH"] = "1"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone"] if mode.endswith("torchrun") else []
    words = ["--steps", str(options.steps), *options.words]
    if launcher and options.stand_in:
        words += ["--backend", "gloo"]
    with tempfile.TemporaryDirectory() as folder:
        env["WITNESS"] = folder
        command = [str(python), *launcher, str(HERE / "trainer.py"), *words]
        ran = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
        lines = [line for line in ran.stdout.splitlines() if line.startswith('{"schema"')]
        if ran.returncode or len(lines) != 1:
            sys.exit(f"{mode} ended with status {ran.returncode}: {ran.stdout[-2000:]}")
        seen = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    return {**json.loads(lines[0]), "mode": mode, "witness": seen}


def served(result):
    """Whether forebay had every byte, by its own figures and by PyTorch's; without the variable, that it was not there."""
    if not result["mode"].startswith("forebay"):
        return result["allocator"] == "native" and not any(one["imported"] for one in result["witness"])
    (witness,) = result["witness"]
    return (
        result["allocator"] == "forebay"
        and witness["installed"]
        and witness["peak_out_bytes"] >= result["allocated_peak_bytes"] > 0
        and witness["allocations"] > 0
        and witness["pinned_bytes"] > 0
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--package", type=Path, default=HERE / "python", help="that folder of the bundle")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--stand-in", action="store_true", help="over python/tests/standin.py: kernels do nothing, and losses are noise")
    parser.add_argument("words", nargs="*", help="for trainer.py, behind --")
    options = parser.parse_args()
    bare.need("torch", "to train")
    for name in ("transformers", "accelerate"):
        bare.need(name, "for its Trainer")
    import torch
    import transformers

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder) / "environment", options)
        for mode in ("native", "forebay", "native-torchrun", "forebay-torchrun"):
            results[mode] = run(python, mode, options)
            print(json.dumps(results[mode]), flush=True)
    losses = results["native"]["losses"]
    # Logged losses are rounded; the weights are not.
    pairs = {one: (results[f"native{one}"], results[f"forebay{one}"]) for one in ("", "-torchrun")}
    compared = ("weights",) if options.stand_in else ("losses", "weights")
    same = {f"native{one}": all(a[key] == b[key] for key in compared) for one, (a, b) in pairs.items()}
    verdict = {
        "schema": "forebay.trainer_check.v1",
        "installed_from": "wheel" if options.wheel else "folder",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "gpu": torch.cuda.get_device_name(),
        "steps": len(losses),
        "losses": [losses[0], losses[-1]],
        "same_losses_and_weights_as": same,
        "served_as_asked": {mode: served(result) for mode, result in results.items()},
        "seconds": {mode: result["seconds"] for mode, result in results.items()},
    }
    print(json.dumps(verdict))
    trained = len(losses) == options.steps and (options.stand_in or losses[-1] < losses[0])
    return 0 if trained and all([*same.values(), *verdict["served_as_asked"].values()]) else 1


if __name__ == "__main__":
    sys.exit(main())
