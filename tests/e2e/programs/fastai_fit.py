"""fastai's learner with its callbacks. It saves below `models`."""

import torch
from fastai.basics import DataLoader, DataLoaders, Learner, nn, set_seed
from fastai.callback.progress import CSVLogger
from fastai.callback.tracker import SaveModelCallback

set_seed(0)
pairs = [(torch.ones(4) * n, torch.ones(1) * n) for n in range(16)]
loaders = DataLoaders(DataLoader(pairs, bs=4), DataLoader(pairs, bs=4))
learner = Learner(loaders, nn.Linear(4, 1), loss_func=nn.functional.mse_loss, lr=0.001)
with learner.no_bar():
    learner.fit(4, cbs=[CSVLogger("results.csv"), SaveModelCallback(every_epoch=True)])
print("epochs:", len(learner.recorder.values))
