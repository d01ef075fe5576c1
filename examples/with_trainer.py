"""Hugging Face Trainer: a small Llama that reads Python, byte by byte, trained sparse.

    python examples/with_trainer.py

The text is the source of Python's own argparse: real text, no download. Delete the lines marked `# sparse`, and the script
trains the dense network.
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

import sparseopt as so  # sparse

STEPS = 120
BATCH = 8
LENGTH = 64


class Source(Dataset):
    """Every stretch of LENGTH bytes of a file."""

    def __init__(self, path: Path) -> None:
        self.bytes = torch.tensor(list(path.read_bytes()))

    def __len__(self) -> int:
        return len(self.bytes) - LENGTH

    def __getitem__(self, start: int) -> dict[str, torch.Tensor]:
        text = self.bytes[start : start + LENGTH]
        return {"input_ids": text, "labels": text}


def train(folder: Path, resume_from: Path | None = None) -> tuple[torch.optim.Optimizer, float]:
    """Train, from a checkpoint if one is named; leave a few in the folder. The optimizer and the loss of the last steps."""
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    topology = so.sparsify(model, 0.8, exclude="lm_head.weight")  # sparse
    optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=STEPS, every=20))  # sparse
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            max_grad_norm=0.0,
            logging_steps=20,
            save_steps=STEPS // 3,
            report_to="none",
        ),
        train_dataset=Source(Path(argparse.__file__)),
        optimizers=(optimizer, None),
    )
    trainer.train(resume_from_checkpoint=resume_from and str(resume_from))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return optimizer, losses[-1]


if __name__ == "__main__":
    train(Path("runs/with-trainer"))
