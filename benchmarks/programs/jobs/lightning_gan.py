"""Lightning's GAN example: manual optimization with two optimizers."""

import generated
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 784))
        self.discriminator = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch):
        images = batch[0].flatten(1)
        optimizer_g, optimizer_d = self.optimizers()
        noise = torch.randn(images.size(0), 16)
        ones, zeros = torch.ones(images.size(0), 1), torch.zeros(images.size(0), 1)
        loss = nn.functional.binary_cross_entropy_with_logits
        self.toggle_optimizer(optimizer_g)
        g_loss = loss(self.discriminator(self.generator(noise)), ones)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        real = loss(self.discriminator(images), ones)
        fake = loss(self.discriminator(self.generator(noise).detach()), zeros)
        self.manual_backward((real + fake) / 2)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)
        self.log_dict({"g_loss": g_loss, "d_loss": real + fake})

    def configure_optimizers(self):
        pair = self.generator, self.discriminator
        return [torch.optim.Adam(part.parameters(), lr=2e-4) for part in pair], []


if __name__ == "__main__":
    L.seed_everything(0)
    images, labels = map(torch.from_numpy, generated.classes(160, (1, 28, 28)))
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        enable_progress_bar=False,
        log_every_n_steps=5,
        logger=L.pytorch.loggers.CSVLogger("logs"),
    )
    trainer.fit(GAN(), loader)
