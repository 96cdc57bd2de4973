"""The loop of pytorch/examples' dcgan: two optimizers, three backwards in a step."""

import generated
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
generator = nn.Sequential(
    nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(True),
    nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(3, 16, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 32, 4, 2, 1, bias=False),
    nn.BatchNorm2d(32),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(32, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
)
criterion = nn.BCELoss()
optimizer_d = optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
images, labels = map(torch.from_numpy, generated.classes(256, (3, 16, 16)))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
fixed = torch.randn(8, 16, 1, 1)

for number, (real, _) in enumerate(loader):
    discriminator.zero_grad()
    size = real.size(0)
    loss_real = criterion(discriminator(real), torch.ones(size))
    loss_real.backward()
    fake = generator(torch.randn(size, 16, 1, 1))
    loss_fake = criterion(discriminator(fake.detach()), torch.zeros(size))
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    loss_g = criterion(discriminator(fake), torch.ones(size))
    loss_g.backward()
    optimizer_g.step()
    if number % 16 == 0:
        print(number, loss_real.item() + loss_fake.item(), loss_g.item())
        fake = generator(fixed).detach()
