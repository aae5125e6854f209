"""A program of hydra, which starts in the working directory and writes to a folder of its run."""

import os

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf


@hydra.main(config_path="conf", config_name="config", version_base=None)
def main(config: DictConfig) -> None:
    folder = HydraConfig.get().runtime.output_dir
    with open(os.path.join(folder, "result.yaml"), "w") as file:
        file.write(OmegaConf.to_yaml(config))
    print("lr", config.optimizer.lr, "steps", config.steps, flush=True)


main()
