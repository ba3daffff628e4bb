"""Processes that use a GPU each, started as argv[1] says, as an engine's workers are: nothing here knows of forebay."""

import multiprocessing
import sys

import torch


def work(rank):
    held = torch.ones(1 << 20, device=f"cuda:{rank}")
    used, allocator = torch.cuda.memory_allocated(rank) > 0, torch.cuda.get_allocator_backend()
    sys.stdout.write(f"rank {rank} {held.device} {allocator} {used}\n")


def engine(how):
    """A process that starts others and does not use a GPU itself."""
    started = multiprocessing.get_context(how)
    ranks = [started.Process(target=work, args=(rank,)) for rank in range(torch.cuda.device_count())]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
        assert one.exitcode == 0


if __name__ == "__main__":
    first = multiprocessing.get_context(sys.argv[1]).Process(target=engine, args=(sys.argv[1],))
    first.start()
    first.join()
    sys.exit(first.exitcode)
