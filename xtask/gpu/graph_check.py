"""CUDA graphs in PyTorch on forebay: captured and replayed, with the same results as on PyTorch's own allocator.

usage: graph_check.py --library LIBRARY

Runs the same program on both, each in a process of its own. Status 0 where the results are the same.
"""

import argparse
import json
import subprocess
import sys

import bare


def run(forebay_installed):
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.LayerNorm(2048), torch.nn.Linear(2048, 512)
    ).cuda()
    inputs = torch.zeros(64, 512, device="cuda")
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside), torch.no_grad():
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(beside)

    # Two graphs of one pool, one after the other.
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(first):
            middle = model(inputs)
            for _ in range(4):
                middle = torch.softmax(model(middle), -1)
        with torch.cuda.graph(second, pool=first.pool()):
            last = model(middle) * 2
    results, wrong = [], 0
    noise = []
    for step in range(20):
        given = torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
        inputs.copy_(given)
        # What is allocated and overwritten meanwhile must not be the graphs' memory.
        noise = [torch.full((step * 1000 + 1, 97), float("nan"), device="cuda") for _ in range(20)]
        first.replay()
        noise += [torch.full((step * 3000 + 1, 31), float("nan"), device="cuda") for _ in range(20)]
        second.replay()
        torch.cuda.synchronize()
        with torch.no_grad():
            expected = model(given)
            for _ in range(4):
                expected = torch.softmax(model(expected), -1)
            expected = model(expected) * 2
        wrong += not torch.allclose(last, expected, rtol=1e-4, atol=1e-5)
        results.append(last.double().sum().item())
    del noise

    # A whole step of training as a graph.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 512, device="cuda", requires_grad=False),))
    losses = []
    for step in range(10):
        given = torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(100 + step))
        loss = graphed(given).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    pools = None
    if forebay_installed:
        numbers = {one["segment_pool_id"] for one in torch.cuda.memory_snapshot()} - {(0, 0)}
        pools = len(numbers)
        assert pools == 2, f"private pools: {numbers}"
        inside = [one for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] == tuple(first.pool())]
        place = last.untyped_storage().data_ptr()
        assert any(one["address"] <= place < one["address"] + one["total_size"] for one in inside), "not in its pool"
        number = tuple(first.pool())
        del first, second, middle, last
        torch.cuda.synchronize()
        # PyTorch keeps what cuBLAS worked in during the capture; that is in the graphs' pool too.
        torch._C._cuda_clearCublasWorkspaces()
        # As PyTorch's own, the pool of graphs that are gone stays until the cache is emptied.
        torch.cuda.empty_cache()
        left = [one for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] == number]
        assert not left, f"the pool of graphs that are gone: {left}"
    return {"results": results, "wrong": wrong, "losses": losses, "private_pools": pools}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    bare.need("torch", "to capture with")
    if options.own:
        print(json.dumps(run(False)))
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--own"]
    own = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    bare.use(options.library)
    import forebay.torch

    forebay.torch.install()
    ours = run(True)
    same = ours["results"] == own["results"] and ours["losses"] == own["losses"]
    print(
        json.dumps(
            {
                "schema": "forebay.graph_check.v1",
                "replays": len(ours["results"]),
                "wrong": [own["wrong"], ours["wrong"]],
                "same": same,
                "losses": [own["losses"][-1], ours["losses"][-1]],
                "private_pools": ours["private_pools"],
            }
        )
    )
    return 0 if same and not own["wrong"] and not ours["wrong"] else 1


if __name__ == "__main__":
    sys.exit(main())
