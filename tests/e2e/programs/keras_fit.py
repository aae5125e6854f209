"""Keras on torch, with its own callbacks for checkpoints and the curve."""

import os

import keras
import numpy
from gate import pass_gate

keras.utils.set_random_seed(0)
os.makedirs("checkpoints", exist_ok=True)
os.makedirs("logs", exist_ok=True)
checkpoint = "checkpoints/model.keras"
if os.path.exists(checkpoint):
    model = keras.saving.load_model(checkpoint)
else:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
done = int(model.optimizer.iterations)
callbacks = [
    keras.callbacks.ModelCheckpoint(checkpoint, save_freq=10),
    keras.callbacks.CSVLogger("logs/curve.csv", append=True),
    keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: pass_gate(done + batch)),
]
inputs = numpy.ones((4 * (40 - done), 4))
model.fit(inputs, inputs.sum(1), batch_size=4, verbose=0, callbacks=callbacks)
print("steps of this start:", int(model.optimizer.iterations) - done)
