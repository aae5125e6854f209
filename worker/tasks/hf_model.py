"""A Hugging Face causal language model from a local folder of safetensors, and its tokenizer."""

import json
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots, OutsideRootsError
from worker.core.errors import RefusedError, is_out_of_memory
from worker.tasks.language_loss import summed_loss, token_loss

_PACKAGES = "Install what `pip install 'trainyard[hf]'` does where the workers run."
_PROBE_TOKENS = 8
_MAX_FILES = 10_000
_INDEX = "model.safetensors.index.json"


class HfFolder:
    """A folder with a Hugging Face model, whose configuration and tokenizer are loaded.

    Raises:
        RefusedError: The folder is not valid, a link in it leads out of the roots, or transformers is not installed.
    """

    def __init__(self, path: str, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> None:
        self._path = Path(path)
        self._roots = roots
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ImportError as error:
            raise RefusedError(f"model.source: `hf` needs transformers: {error}", _PACKAGES) from None
        self._check_files()
        self.config: Any = self._read("a configuration", AutoConfig.from_pretrained)
        self.tokenizer: Any = self._read("a tokenizer", AutoTokenizer.from_pretrained)

    @property
    def context(self) -> int | None:
        """The model's maximum number of tokens; None if its configuration has no limit."""
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return limit if isinstance(limit, int) and limit > 0 else None

    def load(self, *, packed: bool) -> nn.Module:
        """Return the model in fp32 and training mode; called with labels it returns the loss summed over them.

        Args:
            packed: Several examples may share a row, so the model must not let them attend to each other.
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        loader = partial(
            AutoModelForCausalLM.from_pretrained,
            use_safetensors=True,
            dtype=torch.float32,
            # `_check_weights` gives a clearer error: transformers lists the differences only in its log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        model, report = self._read("a causal language model", loader)
        self._check_weights(report)
        rows = model.get_input_embeddings().num_embeddings
        if len(self.tokenizer) > rows:
            raise RefusedError(
                f"model.path: {self._path} has a tokenizer of {len(self.tokenizer)} tokens, more than "
                f"the model's {rows} embeddings",
                "Use the tokenizer that belongs to the model.",
            )
        if packed and not _separates_packed_examples(model):
            raise RefusedError(
                "data.packing: in this model the examples of a packed row attend to each other",
                "Set data.packing to false.",
            )
        own_forward = model.forward
        # The method is replaced instead of the module being wrapped, so that parameter names stay those of the folder.
        model.forward = partial(_forward, model, own_forward, _logits_are_plain_head(model))
        model.train()
        return model  # type: ignore[no-any-return]

    def _check_files(self) -> None:
        prefix = f"model.path: {self._path}"
        if not self._path.is_dir():
            raise RefusedError(f"{prefix} is not a folder that this node can read")
        if not (self._path / "config.json").is_file():
            raise RefusedError(f"{prefix} has no config.json: it is not the folder of a Hugging Face model")
        if not any(self._path.glob("*.safetensors")):
            raise RefusedError(
                f"{prefix} has no *.safetensors file",
                "Pickled weights can run code and are not loaded: save the model again with save_pretrained.",
            )
        self._check_links(prefix)
        self._check_index(prefix)

    def _check_links(self, prefix: str) -> None:
        """Check every file of the folder: transformers opens more of them than the configuration and the weights."""
        for number, path in enumerate((self._path, *islice(self._path.rglob("*"), _MAX_FILES + 1))):
            if number > _MAX_FILES:
                raise RefusedError(f"{prefix} contains more than {_MAX_FILES} files")
            try:
                self._roots.resolve(path)
            except (OutsideRootsError, OSError, RuntimeError) as error:
                raise RefusedError(f"model.path: {error}") from None

    def _check_index(self, prefix: str) -> None:
        """Check the names in the index of the weights, each of which transformers opens as a path."""
        index = self._path / _INDEX
        if not index.is_file():
            return
        try:
            names = list(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise RefusedError(f"{prefix} has a {_INDEX} without a `weight_map` from tensors to files") from None
        for name in names:
            if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
                raise RefusedError(f"{prefix} has a {_INDEX} that names {name!r}, which is no *.safetensors file of it")

    def _read(self, kind: str, load: Callable[..., Any]) -> Any:
        try:
            return load(self._path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            text = str(error).strip().split("\n")[0] or type(error).__name__
            raise RefusedError(f"model.path: {self._path} does not hold {kind} that can be loaded: {text}") from error

    def _check_weights(self, report: dict[str, Any]) -> None:
        """Raise RefusedError for missing or mismatched weights, which transformers would initialise at random."""
        for kind, problem in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
            keys = report.get(kind) or ()
            if names := sorted(name if isinstance(name, str) else name[0] for name in keys):
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                raise RefusedError(
                    f"model.path: {self._path} does not fit its config.json: it {problem} {', '.join(names[:5])}{more}"
                )


def _forward(
    model: Any,
    own_forward: Callable[..., Any],
    chunked: bool,
    tokens: torch.Tensor,
    labels: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return logits (batch, length, vocabulary), or with `labels` (int64, (batch, length)) the summed loss (fp32, ()).

    `positions` (int64, (batch, length)) count from 0 in each example of a packed row; transformers then masks attention
    between examples. With `chunked` the logits are computed chunk by chunk from the body's hidden states.
    """
    placed = {} if positions is None else {"position_ids": positions}
    if labels is None or not chunked:
        logits: torch.Tensor = own_forward(input_ids=tokens, use_cache=False, **placed).logits
        return logits if labels is None else token_loss(logits.flatten(0, 1), labels.flatten())
    hidden = model.base_model(input_ids=tokens, use_cache=False, **placed)[0]
    head = model.get_output_embeddings()
    return summed_loss(hidden, labels, head, head.weight.shape[0], head.parameters())


@torch.no_grad()
def _logits_are_plain_head(model: Any) -> bool:
    """Return whether the logits are the head applied to the body's output: some models scale or cap them. Needs a model
    in evaluation mode."""
    head = model.get_output_embeddings()
    if head is None or model.base_model is model:
        return False
    tokens = torch.arange(_PROBE_TOKENS)[None] % head.weight.shape[0]
    own = model(input_ids=tokens, use_cache=False).logits
    ours = head(model.base_model(input_ids=tokens, use_cache=False)[0])
    return ours.shape == own.shape and bool(torch.allclose(ours, own, rtol=1e-4, atol=1e-5))


@torch.no_grad()
def _separates_packed_examples(model: Any) -> bool:
    """Return whether an example has the same logits alone and after another one in the same row."""
    tokens = torch.arange(_PROBE_TOKENS)[None] % model.get_input_embeddings().num_embeddings
    half = _PROBE_TOKENS // 2
    positions = torch.arange(half).repeat(2)[None]
    behind = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, half:]
    alone = model(input_ids=tokens[:, half:], position_ids=positions[:, half:], use_cache=False).logits
    return bool(torch.allclose(behind, alone, rtol=1e-4, atol=1e-5))
