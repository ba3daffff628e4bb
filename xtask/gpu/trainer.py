"""A small GPT-2 by Hugging Face's Trainer, on random tokens: nothing is downloaded, and nothing here knows of forebay.

    python trainer.py [--steps 30] [--layers 4] [--width 256] [--length 256] [--backend gloo]
    torchrun --nproc-per-node 1 trainer.py

Prints a line of JSON in the end. trainer_check.py runs it with PyTorch's own allocator and with forebay.
"""

import argparse
import hashlib
import json
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

WORDS = 1000


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count, length):
        # Of a few words alone, so that there is something to learn.
        self.rows = torch.randint(WORDS // 20, (count, length), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--backend", help="of torch.distributed, under torchrun")
    options = parser.parse_args()
    sizes = {"n_layer": options.layers, "n_embd": options.width, "n_head": 4, "n_positions": options.length}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            learning_rate=1e-3,
            per_device_train_batch_size=options.batch,
            dataloader_num_workers=2,
            dataloader_pin_memory=True,
            ddp_backend=options.backend,
            full_determinism=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        # Attention whose every step is deterministic, so that two runs can be compared bit by bit.
        words = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "attn_implementation": "eager"}
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**sizes, **words))
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(options.batch * 64, options.length))
        trainer.train()
    weights = b"".join(value.detach().cpu().numpy().tobytes() for value in model.parameters())
    result = {
        "schema": "forebay.trainer.v1",
        "rank": arguments.process_index,
        "ranks": arguments.world_size,
        "device": str(arguments.device),
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "weights": hashlib.sha256(weights).hexdigest(),
        "seconds": trainer.state.log_history[-1]["train_runtime"],
        "allocator": torch.cuda.get_allocator_backend(),
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
