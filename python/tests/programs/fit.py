"""A small model by Lightning's Trainer, on random rows: nothing here knows of forebay."""

import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.randn(32, generator=torch.Generator().manual_seed(at))


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, number):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    gpus = int(sys.argv[1])
    data = torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2, pin_memory=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    strategy = DDPStrategy(process_group_backend="gloo") if gpus > 1 else "auto"
    trainer = lightning.Trainer(max_steps=3, accelerator="gpu", devices=gpus, strategy=strategy, **quiet)
    trainer.fit(Model(), data)
    place = torch.cuda.current_device()
    # At once: the ranks share the stream.
    used, allocator = torch.cuda.max_memory_allocated() > 0, torch.cuda.get_allocator_backend()
    sys.stdout.write(f"rank {trainer.global_rank} cuda:{place} {allocator} {used}\n")
