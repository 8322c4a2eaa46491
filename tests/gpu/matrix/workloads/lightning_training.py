"""Lightning: a model whose trainer goes on for some steps in each look."""

import logging
import tempfile

import lightning
import torch

from .on_torch import DEVICE, TorchWork, deterministic

STEPS = 5


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self._layers = torch.nn.Sequential(
            torch.nn.Linear(64, 256),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(256, 1),
        )
        self.losses = []

    def training_step(self, batch, _):
        loss = (self._layers(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        deterministic(seed)
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self._model = Model()
        self._batches = torch.utils.data.DataLoader(torch.rand(STEPS * 32, 64), batch_size=32)
        self._folder = tempfile.gettempdir()
        self._epochs = 0
        self._trainer = lightning.Trainer(
            accelerator="cpu" if DEVICE == "cpu" else "gpu",
            devices=1,
            max_epochs=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self._folder,
        )
        self._train()

    def _train(self):
        self._epochs += 1
        self._trainer.fit_loop.max_epochs = self._epochs
        self._trainer.fit(self._model, self._batches)
        if len(self._model.losses) != STEPS * self._epochs:
            raise RuntimeError("the trainer has not gone on")

    def look(self):
        self._train()
        return {**super().look(), "losses": [f"{loss:.9e}" for loss in self._model.losses]}
