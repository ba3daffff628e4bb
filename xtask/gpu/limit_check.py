"""The largest job that trains within a limit, on PyTorch's own allocator, with expandable segments, and on forebay.

usage: limit_check.py [--limit 12] [--models llama,gpt2] [--modes native-expandable,forebay] [--precision 0.004]

A job is 16 steps of AdamW in bf16 on random tokens; its length is scaled by a factor k, and the largest k that runs
without torch.OutOfMemoryError is searched by bisection, with a process for each try. Llama: 12 layers of width 1024,
gradient checkpointing, and in each step 1 to 8 sequences of k times 128 to 1500 tokens. GPT-2: 124M with 8192 positions, 8
sequences of k times 512 tokens. The limit is max_bytes for forebay, and the process's memory fraction for the others.
Prints a JSON object a line: every try, and for each model and mode the largest k with its time a step. Status 3 where a
package is missing.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time

# Where a search begins: a factor that fits under every allocator, and one that fits under none.
BOUNDS = {"llama": (2.0, 2.44), "gpt2": (1.6, 1.96)}
STEPS = 16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=12, help="GiB")
    parser.add_argument("--models", default="llama,gpt2")
    parser.add_argument("--modes", default="native-expandable,forebay")
    parser.add_argument("--precision", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "MODE", "K"), help=argparse.SUPPRESS)
    return parser.parse_args()


def install(mode, limit):
    """Chooses the allocator and its limit, before PyTorch uses the GPU."""
    if mode == "native-expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    if mode == "forebay":
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
        import forebay.torch

        forebay.torch.install(max_bytes=limit)
    else:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
    return torch


def make(model, torch):
    """The model, and the shapes of its batches at k = 1."""
    import transformers

    torch.manual_seed(1)
    if model == "llama":
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
            num_key_value_heads=4, vocab_size=32000, max_position_embeddings=8192, use_cache=False,
        )
        made = transformers.LlamaForCausalLM(config).cuda()
        made.gradient_checkpointing_enable()
    else:
        config = transformers.GPT2Config(n_positions=8192, use_cache=False)
        made = transformers.GPT2LMHeadModel(config).cuda()
    return made.train(), config.vocab_size


def train(model, mode, k, limit, seed):
    torch = install(mode, limit)
    made, words = make(model, torch)
    optimizer = torch.optim.AdamW(made.parameters())
    draw, times = random.Random(seed), []
    for _ in range(STEPS):
        rows, length = (draw.randint(1, 8), int(k * draw.randint(128, 1500))) if model == "llama" else (8, int(k * 512))
        tokens = torch.randint(0, words, (rows, length), device="cuda")
        begun = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = made(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    # The first steps compile and grow.
    return {"step_ms": 1000 * sum(times[STEPS // 2:]) / (STEPS - STEPS // 2), "all_ms": 1000 * sum(times)}


def attempt(model, mode, k, options):
    words = [sys.executable, os.path.abspath(__file__), "--limit", str(options.limit), "--seed", str(options.seed)]
    ran = subprocess.run(words + ["--one", model, mode, str(k)], capture_output=True, text=True)
    if ran.returncode == 0:
        return json.loads(ran.stdout.splitlines()[-1])
    if "OutOfMemoryError" in ran.stderr or "out of memory" in ran.stderr:
        return None
    raise SystemExit(f"{model} on {mode} at {k} failed:\n{ran.stderr[-2000:]}")


def search(model, mode, options):
    low, high = BOUNDS[model]
    best = attempt(model, mode, low, options)
    while best is not None and high - low > options.precision * low:
        middle = (low + high) / 2
        took = attempt(model, mode, middle, options)
        print(json.dumps({"try": model, "mode": mode, "k": round(middle, 4), "fits": took is not None}), flush=True)
        if took is None:
            high = middle
        else:
            low, best = middle, took
    return {"model": model, "mode": mode, "limit_gib": options.limit, "largest_k": round(low, 4), **(best or {})}


def main():
    options = arguments()
    if options.one:
        model, mode, k = options.one
        print(json.dumps(train(model, mode, float(k), int(options.limit * 2**30), options.seed)))
        return 0
    try:
        import transformers  # noqa: F401
    except ImportError as missing:
        print(json.dumps({"skipped": str(missing)}))
        return 3
    for model in options.models.split(","):
        for mode in options.modes.split(","):
            print(json.dumps({"schema": "forebay.limit.v1", **search(model, mode, options)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
