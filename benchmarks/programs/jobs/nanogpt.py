"""The loop of nanoGPT's train.py: no loader, accumulation, evaluations."""

import contextlib
import os

import generated
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BLOCK, BATCH, VOCABULARY, ITERATIONS = 32, 12, 64, 40
ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    torch.distributed.init_process_group("gloo")
master = not ddp or os.environ["RANK"] == "0"
accumulation = 4 // (int(os.environ["WORLD_SIZE"]) if ddp else 2)
torch.manual_seed(1337 + int(os.environ.get("RANK", 0)))
data = torch.from_numpy(generated.tokens(20000, VOCABULARY))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 64), nn.Embedding(BLOCK, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, given, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(given.size(1))
        x = self.tokens(given) + self.places(torch.arange(given.size(1)))
        logits = self.head(self.blocks(x, mask=mask))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch():
    starts = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([data[i : i + BLOCK] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in starts])
    return x, y


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = torch.tensor([model(*get_batch())[1].item() for _ in range(5)])
    model.train()
    return losses.mean()


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
raw_model = model
if ddp:
    model = DDP(model)
X, Y = get_batch()
for number in range(ITERATIONS):
    if number % 10 == 0 and master:
        print(number, estimate_loss(raw_model).item())
    for micro in range(accumulation):
        if ddp:
            model.require_backward_grad_sync = micro == accumulation - 1
        with contextlib.nullcontext():
            logits, loss = model(X, Y)
            loss = loss / accumulation
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
if ddp:
    torch.distributed.destroy_process_group()
