"""The loop of pytorch/examples' word_language_model: no loader."""

import sys

import generated
import torch
from torch import nn

TOKENS, BATCH, LENGTH = 64, 8, 20


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(TOKENS, 64), nn.LSTM(64, 64, 2)
        self.decoder = nn.Linear(64, TOKENS)

    def forward(self, given, hidden):
        output, hidden = self.rnn(self.encoder(given), hidden)
        return self.decoder(output).view(-1, TOKENS), hidden


def batchify(data):
    count = data.size(0) // BATCH
    return data.narrow(0, 0, count * BATCH).view(BATCH, -1).t().contiguous()


def get_batch(source, i):
    length = min(LENGTH, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


torch.manual_seed(1111)
train_data = batchify(torch.from_numpy(generated.tokens(6800)))
valid_data = batchify(torch.from_numpy(generated.tokens(1000, seed=1)))
model, criterion, lr = Model(), nn.CrossEntropyLoss(), 5.0
with_optimizer = "--use-optimizer" in sys.argv
optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if with_optimizer else None
for epoch in range(2):
    model.train()
    hidden = (torch.zeros(2, BATCH, 64), torch.zeros(2, BATCH, 64))
    for i in range(0, train_data.size(0) - 1, LENGTH):
        data, targets = get_batch(train_data, i)
        if with_optimizer:
            optimizer.zero_grad()
        else:
            model.zero_grad()
        hidden = tuple(part.detach() for part in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        if with_optimizer:
            optimizer.step()
        else:
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
    model.eval()
    with torch.no_grad():
        hidden = (torch.zeros(2, BATCH, 64), torch.zeros(2, BATCH, 64))
        for i in range(0, valid_data.size(0) - 1, LENGTH):
            data, targets = get_batch(valid_data, i)
            output, hidden = model(data, hidden)
    print(epoch, loss.item(), criterion(output, targets).item())
