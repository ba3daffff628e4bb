"""Out of memory inside PyTorch on forebay: it is raised, it says why, and the program goes on.

usage: oom_check.py --library LIBRARY

Prints a JSON object. Status 0 where all is as it should be.
"""

import argparse
import json
import sys

import bare


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    options = parser.parse_args()
    bare.need("torch", "to run out of memory in")
    bare.use(options.library)
    import forebay.torch

    forebay.torch.install(max_bytes="4GiB")
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(rows):
        loss = model(torch.ones(rows, 4096, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step(16)
    before = torch.cuda.memory_allocated()
    # A batch that is too large is halved until it fits.
    rows, refused, said = 1 << 20, [], ""
    while True:
        try:
            step(rows)
            break
        except torch.OutOfMemoryError as error:
            said = said or str(error)
            refused.append(rows)
            optimizer.zero_grad(set_to_none=True)
            del error
            rows //= 2
    # As programs look for it, and with the report.
    for words in ("CUDA out of memory.", "requested", "at most 4.00 GiB", "torch ("):
        assert words in said, f"no {words!r} in {said!r}"
    assert refused and rows >= 1024, (refused, rows)
    after = torch.cuda.memory_allocated()
    assert after == before, f"{after} live, {before} before"
    # Again and again.
    for _ in range(100):
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            continue
        raise AssertionError("a tensor of 1 TiB")
    assert torch.cuda.memory_allocated() == before

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient + torch.empty(1 << 40, dtype=torch.uint8, device="cuda").float()

    try:
        # In a thread of PyTorch's own.
        Greedy.apply(torch.ones(8, device="cuda", requires_grad=True)).sum().backward()
        raise AssertionError("a tensor of 1 TiB")
    except torch.OutOfMemoryError:
        pass
    assert step(1024) > 0
    # The device itself is full: the limit is lifted.
    forebay.torch.configure(max_bytes=None)
    kept = []
    try:
        while True:
            kept.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        full = str(error)
        del error
    most = len(kept)
    kept.clear()
    assert step(1024) > 0
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] >= len(refused) + 102, stats["num_ooms"]
    torch.cuda.empty_cache()
    print(
        json.dumps(
            {
                "schema": "forebay.oom_check.v1",
                "refused_batches": refused,
                "batch": rows,
                "loss": step(16),
                "said": said,
                "device_full_at_gib": 8 * most,
                "said_when_full": full,
                "num_ooms": stats["num_ooms"],
                "num_alloc_retries": stats["num_alloc_retries"],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
