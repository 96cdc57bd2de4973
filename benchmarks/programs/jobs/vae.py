"""The loop of pytorch/examples' vae: a loss of two parts."""

import generated
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 200), nn.Linear(200, 20), nn.Linear(200, 20)
        self.fc3, self.fc4 = nn.Linear(20, 200), nn.Linear(200, 784)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        h1 = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        std = torch.exp(0.5 * logvar)
        return self.decode(mu + torch.randn_like(std) * std), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x.view(-1, 784), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


torch.manual_seed(1)
images, labels = map(torch.from_numpy, generated.classes(320, (1, 28, 28)))
data = TensorDataset(images.sigmoid(), labels)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    model.train()
    for batch, _ in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        recon, mu, logvar = model(batch)
        loss = loss_function(recon, batch, mu, logvar)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch, _ in DataLoader(data, batch_size=64):
            model(batch)
        sample = model.decode(torch.randn(64, 20))
    print(epoch, loss.item(), sample.mean().item())
