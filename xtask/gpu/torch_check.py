"""PyTorch on forebay's allocator: the same training as on its own, to the same numbers.

usage: torch_check.py LIBRARY
"""

import subprocess
import sys


def train():
    """Losses of a small training on one stream, with a second one beside it."""
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    beside = torch.cuda.Stream()
    losses = []
    for step in range(30):
        rows = 64 + 37 * (step % 7)
        data = torch.randn(rows, 256, device="cuda")
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            target = data.roll(1, dims=0) * 2
        torch.cuda.current_stream().wait_stream(beside)
        target.record_stream(torch.cuda.current_stream())
        loss = torch.nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.cuda.synchronize()
    return losses


def main():
    if sys.argv[1] == "--own":
        print(" ".join(repr(loss) for loss in train()))
        return 0
    import torch

    own = subprocess.run(
        [sys.executable, __file__, "--own"], capture_output=True, text=True, check=True
    )
    expected = [float(word) for word in own.stdout.split()]
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        sys.argv[1], "forebay_torch_alloc", "forebay_torch_free"
    )
    torch.cuda.memory.change_current_allocator(allocator)
    losses = train()
    wrong = [
        (step, one, other)
        for step, (one, other) in enumerate(zip(losses, expected))
        if abs(one - other) > 1e-5 * max(abs(other), 1e-6)
    ]
    print(f"{len(losses)} steps, last loss {losses[-1]:.6f}, on PyTorch's own {expected[-1]:.6f}")
    if wrong or len(losses) != len(expected):
        print("other losses than on PyTorch's own allocator:", wrong[:5])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
