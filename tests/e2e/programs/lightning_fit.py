"""Lightning with its default folder for logs, and checkpoints in a relative folder."""

import lightning
import torch
from gate import pass_gate
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger


class Module(lightning.LightningModule):
    steps = 0

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        self.steps += 1
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Gate(Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        pass_gate(trainer.global_step)


torch.manual_seed(0)  # the best checkpoint is that of the same step in each run
module = Module()
save = ModelCheckpoint("checkpoints", monitor="loss", every_n_train_steps=10, save_last=True)
trainer = lightning.Trainer(
    max_steps=40,
    accelerator="cpu",
    devices=1,
    logger=TensorBoardLogger("."),
    log_every_n_steps=1,
    enable_progress_bar=False,
    callbacks=[save, Gate()],
)
trainer.fit(module, torch.utils.data.DataLoader(torch.randn(256, 4), batch_size=4), ckpt_path="last")
print("steps of this start:", module.steps)
