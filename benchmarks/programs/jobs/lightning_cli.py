"""Lightning's command line, as in its autoencoder example."""

from lightning.pytorch.cli import LightningCLI
from lightning_auto import Digits, LitAutoEncoder

if __name__ == "__main__":
    cli = LightningCLI(
        LitAutoEncoder,
        Digits,
        run=False,
        save_config_kwargs={"overwrite": True},
        seed_everything_default=1234,
        trainer_defaults={"max_epochs": 2},
    )
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    cli.trainer.test(ckpt_path="best", datamodule=cli.datamodule)
