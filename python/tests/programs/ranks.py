"""DDP in plain PyTorch, a GPU for each rank of torchrun: nothing here knows of forebay."""

import os
import sys

import torch
import torch.distributed as distributed


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.full((64,), float(at))


def main():
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group(sys.argv[1])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=2, pin_memory=True):
        assert rows.is_pinned()
        model(rows.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.barrier()
    # At once: the ranks share the stream.
    used, allocator = torch.cuda.max_memory_allocated() > 0, torch.cuda.get_allocator_backend()
    sys.stdout.write(f"rank {rank} cuda:{rank} {allocator} {used}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
