"""A Hugging Face model from a local folder of safetensors, and its tokenizer or image processor."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from worker.core.errors import RefusedError, is_out_of_memory
from worker.data.model_files import ModelFiles
from worker.deferred.model import DeferredModel
from worker.deferred.recorder import record
from worker.deferred.recording import CannotDeferError
from worker.tasks.hf_forward import read_traits, set_forward
from worker.tasks.hf_slices import StreamedTraits, locate_parameters

_UNQUANTIZED = "Name the folder of the model with whole weights; `lora.base_dtype` can hold it in 8 or 4 bits."
_PACKAGES = "Install what `pip install 'trainyard[hf]'` does where the workers run."


class HfFolder:
    """A folder with a Hugging Face model, whose configuration is loaded.

    Raises:
        RefusedError: The folder is not valid, a file of it leads out of the roots, or transformers is not installed.
    """

    def __init__(self, path: str, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> None:
        self.path = Path(path)
        try:
            from transformers import AutoConfig
        except ImportError as error:
            raise RefusedError(f"model.source: `hf` needs transformers: {error}", _PACKAGES) from None
        self._files = ModelFiles(path, roots)
        self._check_files(self._files.folder)
        self.config: Any = self.read("a configuration", AutoConfig.from_pretrained)

    @cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer. Raises RefusedError: there is none."""
        from transformers import AutoTokenizer

        return self.read("a tokenizer", AutoTokenizer.from_pretrained)

    @cached_property
    def image_processor(self) -> Any:
        """Its image processor, on Pillow. Raises RefusedError: there is none, or Pillow is not installed."""
        try:
            import PIL  # noqa: F401
            from transformers import AutoImageProcessor
        except ImportError as error:
            raise RefusedError(f"data.source: `images` needs Pillow: {error}", _PACKAGES) from None
        # Another backend makes other pixels, and a resumed run may find torchvision installed.
        return self.read("an image processor", partial(AutoImageProcessor.from_pretrained, backend="pil"))

    @property
    def context(self) -> int | None:
        """The model's maximum number of tokens; None if its configuration has no limit."""
        return context_of(self.config)

    def load(self, *, packed: bool) -> nn.Module:
        """Return the model in fp32 and training mode; called with labels it returns the loss summed over them.

        Args:
            packed: Several examples may share a row, so the model must not let them attend to each other.
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        model = self.load_weights("a causal language model", AutoModelForCausalLM)
        self.check_vocabulary(model)
        set_forward(model, read_traits(model, packed=packed))
        return model  # type: ignore[no-any-return]

    def defer(self, *, packed: bool) -> DeferredModel:
        """Return the same model without its parameters, and where they are in the files.

        Raises:
            CannotDeferError: The files do not hold the model's parameters one to one, or cannot be read.
        """
        from transformers import AutoModelForCausalLM

        model, recording = record(partial(AutoModelForCausalLM.from_config, self.config, dtype=torch.float32))
        try:
            files = locate_parameters(self._files, model, recording)
        except (OSError, ValueError, LookupError, SafetensorError) as error:
            # `load` explains the problem with the folder.
            raise CannotDeferError(str(error)) from error
        self.check_vocabulary(model)
        deferred = DeferredModel(model, (recording,), files)
        deferred.compute_buffers()
        return replace(deferred, examination=StreamedTraits(model, deferred.tensors(), files, packed=packed))

    def check_vocabulary(self, model: Any) -> None:
        """Raise RefusedError unless the model has an embedding of each token."""
        rows = model.get_input_embeddings().num_embeddings
        if len(self.tokenizer) > rows:
            raise RefusedError(
                f"model.path: {self.path} has a tokenizer of {len(self.tokenizer)} tokens, more than "
                f"the model's {rows} embeddings",
                "Use the tokenizer that belongs to the model.",
            )

    def _check_files(self, folder: Path) -> None:
        prefix = f"model.path: {self.path}"
        if not (folder / "config.json").is_file():
            raise RefusedError(f"{prefix} has no config.json: it is not the folder of a Hugging Face model")
        if not any(folder.glob("*.safetensors")):
            raise RefusedError(
                f"{prefix} has no *.safetensors file",
                "Pickled weights can run code and are not loaded: save the model again with save_pretrained.",
            )

    def read(self, kind: str, load: Callable[..., Any]) -> Any:
        """Call a loader of transformers with the folder. Raises RefusedError: the folder does not hold that kind."""
        try:
            return load(self._files.folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            text = str(error).strip().split("\n")[0] or type(error).__name__
            text = text.replace(str(self._files.folder), str(self.path))
            raise RefusedError(f"model.path: {self.path} does not hold {kind} that can be loaded: {text}") from error

    def load_weights(
        self,
        kind: str,
        loader: Any,
        may_be_new: Callable[[Any, str], bool] = lambda model, name: False,
        **settings: Any,
    ) -> Any:
        """Return the model of a class of transformers in fp32.

        Args:
            kind: The expected content of the folder, for messages.
            may_be_new: Whether a parameter of the model that the folder lacks, or has in another shape, is initialised.

        Raises:
            RefusedError: The folder does not hold such a model, or lacks other parameters.
        """
        load = partial(
            loader.from_pretrained,
            use_safetensors=True,
            dtype=torch.float32,
            # The check below gives a clearer error: transformers lists the differences only in its log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **settings,
        )
        try:
            model, report = self.read(kind, load)
        except RefusedError as error:
            raise RefusedError(str(error), _UNQUANTIZED if self._quantization else error.hint) from error
        # Some kinds are converted to whole weights, and then the configuration describes the whole weights.
        if getattr(model.config, "quantization_config", None) is not None:
            raise RefusedError(
                f"model.path: {self.path} has weights that are quantized ({self._quantization}) and cannot be trained",
                _UNQUANTIZED,
            )
        self._check_weights(report, partial(may_be_new, model))
        return model

    @property
    def _quantization(self) -> str | None:
        """The method with which the folder's weights are quantized; None if they are not."""
        stated = getattr(self.config, "quantization_config", None)
        if stated is None:
            return None
        return str(stated.get("quant_method", "unknown") if isinstance(stated, dict) else stated)

    def _check_weights(self, report: dict[str, Any], may_be_new: Callable[[str], bool]) -> None:
        for kind, problem in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
            keys = (name if isinstance(name, str) else name[0] for name in report.get(kind) or ())
            if names := sorted(name for name in keys if not may_be_new(name)):
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                raise RefusedError(
                    f"model.path: {self.path} does not fit its config.json: it {problem} {', '.join(names[:5])}{more}"
                )


def without_cache(model: Any) -> None:
    """Let a decoder keep no keys and values of earlier tokens: only generation needs them, and activation checkpointing
    would add the keys and values of a layer twice."""
    model.config.use_cache = False


def context_of(config: Any) -> int | None:
    """Return the maximum number of tokens of a configuration; None if it has no limit."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None
