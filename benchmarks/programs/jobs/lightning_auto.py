"""Lightning's autoencoder example: automatic optimization."""

import generated
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(L.LightningModule):
    def __init__(self, hidden: int = 64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.decoder = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 784))

    def _step(self, batch):
        x = batch[0].view(batch[0].size(0), -1)
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, batch_idx):
        loss = self._step(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._step(batch))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self._step(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Digits(L.LightningDataModule):
    def setup(self, stage: str) -> None:
        images, labels = map(torch.from_numpy, generated.classes(160, (1, 28, 28)))
        self.data = TensorDataset(images, labels)

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=32)

    test_dataloader = val_dataloader


def main():
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=2,
        val_check_interval=10,
        accelerator="auto",
        enable_progress_bar=False,
        gradient_clip_val=1.0,
        log_every_n_steps=5,
        logger=L.pytorch.loggers.CSVLogger("logs"),
    )
    model, data = LitAutoEncoder(), Digits()
    trainer.fit(model, data)
    trainer.test(model, data)


if __name__ == "__main__":
    main()
