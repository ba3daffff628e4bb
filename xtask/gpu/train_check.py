"""GPT-2 trained and generating on PyTorch's own allocator, on that with expandable segments, and on forebay.

usage: train_check.py --library LIBRARY [--steps 30] [--warm 5] [--batch 8] [--model transformers|plain]
       [--modes native,native-expandable,forebay]

Each mode is a process of its own, and they take turns, with random weights of the same seed and strictly deterministic
algorithms. Prints a JSON object for each, and one that compares them. Status 0 where losses and tokens are the same and
forebay takes less of the device; 1 where not; 3 where a package is missing. ``--model plain`` is a GPT-2 of the same size
in PyTorch alone, for where there is no transformers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import bare

VOCABULARY, POSITIONS, WIDTH, HEADS, LAYERS = 50257, 1024, 768, 12, 12


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--model", choices=["transformers", "plain"], default="transformers")
    parser.add_argument("--rounds", type=int, default=2, help="how often each mode runs, by turns")
    parser.add_argument("--modes", default="native,native-expandable,forebay")
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    return parser.parse_args()


def plain_model(torch):
    """GPT-2 of the usual size, in PyTorch alone."""
    functional = torch.nn.functional

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
            self.attend, self.join = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
            self.widen, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            rows, length, _ = x.shape
            parts = self.attend(self.before(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + functional.dropout(self.join(seen.transpose(1, 2).reshape(rows, length, WIDTH)), 0.1, self.training)
            wide = functional.gelu(self.widen(self.between(x)), approximate="tanh")
            return x + functional.dropout(self.narrow(wide), 0.1, self.training)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(POSITIONS, WIDTH)
            self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
            self.last = torch.nn.LayerNorm(WIDTH)

        def scores(self, ids):
            x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.last(x) @ self.words.weight.t()

        def forward(self, ids):
            scores = self.scores(ids)[:, :-1].float()
            return functional.cross_entropy(scores.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))

        def continued(self, ids, count):
            for _ in range(count):
                ids = torch.cat([ids, self.scores(ids)[:, -1].argmax(-1, keepdim=True)], 1)
            return ids

    model = Model()
    for value in model.parameters():
        if value.dim() > 1:
            torch.nn.init.normal_(value, std=0.02)
    return model


def transformers_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def run(options):
    import torch

    torch.manual_seed(1)
    # Strictly: what has no deterministic form would be an error. One backend of attention says that it has one.
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    # No program that is right reads what it has not written, so that filling new memory would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.cuda.init()
    torch.cuda.synchronize()
    free_before, _ = torch.cuda.mem_get_info()
    plain = options.model == "plain"
    model = (plain_model(torch) if plain else transformers_model()).cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    made = torch.Generator().manual_seed(2)
    losses, times, least_free = [], [], free_before
    for step in range(options.warm + options.steps):
        ids = torch.randint(VOCABULARY, (options.batch, options.length), generator=made).cuda()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids) if plain else model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        took = time.perf_counter() - begun
        losses.append(loss.item())
        if step >= options.warm:
            times.append(took)
        # No cache gives memory back by itself, so what is free after a step is what was free at its fullest.
        least_free = min(least_free, torch.cuda.mem_get_info()[0])
    model.eval()
    prompt = torch.randint(VOCABULARY, (4, 16), generator=made).cuda()
    begun = time.perf_counter()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        if plain:
            tokens = model.continued(prompt, options.tokens)
        else:
            tokens = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=options.tokens,
                min_new_tokens=options.tokens,
                do_sample=False,
                pad_token_id=0,
            )
    torch.cuda.synchronize()
    took = time.perf_counter() - begun
    least_free = min(least_free, torch.cuda.mem_get_info()[0])
    stats = torch.cuda.memory_stats()
    return {
        "schema": "forebay.train_check.v1",
        "mode": options.mode,
        "model": options.model,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "batch": options.batch,
        "steps": options.steps,
        "step_ms": [one * 1e3 for one in times],
        "generate_ms": took * 1e3,
        "driver_peak_bytes": free_before - least_free,
        "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
        "allocated_peak_bytes": stats["allocated_bytes.all.peak"],
        "losses": losses,
        "tokens": tokens.tolist(),
    }


def child(options):
    if options.mode == "forebay":
        bare.use(options.library)
        import forebay.torch

        forebay.torch.install()
    result = run(options)
    if options.mode == "forebay":
        result["attribution"] = forebay.torch.attribution(0)
    print(json.dumps(result))


def main():
    options = arguments()
    bare.need("torch", "to train")
    if options.model == "transformers":
        bare.need("transformers", "for GPT-2 (--model plain does without)")
    if options.mode:
        child(options)
        return 0
    results = {}
    for mode in options.modes.split(",") * options.rounds:
        env = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false"}
        env.pop("PYTORCH_ALLOC_CONF", None)
        env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        if mode == "native-expandable":
            env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        command = [sys.executable, __file__, *sys.argv[1:], "--mode", mode]
        ran = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
        lines = ran.stdout.strip().splitlines()
        if ran.returncode != 0 or not lines:
            print(f"{mode} ended with status {ran.returncode}: {ran.stdout[-2000:]}", file=sys.stderr)
            return ran.returncode or 1
        result = json.loads(lines[-1])
        print(lines[-1], flush=True)
        if mode not in results:
            results[mode] = result
            continue
        before = results[mode]
        if any(result[key] != before[key] for key in ("losses", "tokens")):
            print(f"{mode} does not repeat itself", file=sys.stderr)
            return 1
        before["step_ms"] += result["step_ms"]
        before["driver_peak_bytes"] = max(before["driver_peak_bytes"], result["driver_peak_bytes"])
    first = next(iter(results.values()))
    same = {}
    for mode, result in results.items():
        apart = [abs(one - other) / max(abs(other), 1e-9) for one, other in zip(result["losses"], first["losses"])]
        same[mode] = {
            "losses_equal": result["losses"] == first["losses"],
            "losses_apart": max(apart),
            "tokens_equal": result["tokens"] == first["tokens"],
            "steps": len(result["step_ms"]),
            "median_step_ms": statistics.median(result["step_ms"]),
            "step_ratio": statistics.median(result["step_ms"]) / statistics.median(first["step_ms"]),
            "driver_ratio": result["driver_peak_bytes"] / first["driver_peak_bytes"],
        }
    print(json.dumps({"schema": "forebay.train_compare.v1", "against": first["mode"], "modes": same}))
    alike = all(one["losses_equal"] and one["tokens_equal"] for one in same.values())
    lower = all(one["driver_ratio"] < 1 for mode, one in same.items() if mode == "forebay")
    return 0 if alike and lower else 1


if __name__ == "__main__":
    sys.exit(main())
