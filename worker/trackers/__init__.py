"""Reports of a program through its trackers: MLflow, W&B and TensorBoard. The launcher of each node serves the APIs of
MLflow and W&B on 127.0.0.1, and reads TensorBoard's event files."""
