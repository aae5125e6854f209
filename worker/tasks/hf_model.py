"""A Hugging Face causal language model from a local folder of safetensors, and its tokenizer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from worker.core.errors import RefusedError, is_out_of_memory
from worker.tasks.language_loss import summed_loss, token_loss

_PACKAGES = "Install what `pip install 'trainyard[hf]'` does where the workers run."
_PROBE = 8


class HfFolder:
    """A folder whose configuration and tokenizer have been read, and found to fit together.

    Raises:
        RefusedError: it is no such folder, or transformers is not there.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ImportError as error:
            raise RefusedError(f"model.source: `hf` needs transformers: {error}", _PACKAGES) from None
        self._check_files()
        self.config: Any = self._read("a configuration", AutoConfig.from_pretrained)
        self.tokenizer: Any = self._read("a tokenizer", AutoTokenizer.from_pretrained)

    @property
    def context(self) -> int | None:
        """Tokens that the model sees at most; None where its configuration names no limit."""
        found = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None

    def load(self, *, packed: bool) -> nn.Module:
        """The model in fp32, ready to train; called with labels it returns the loss summed over them.

        Args:
            packed: several examples may share a row, so the model must keep them apart.
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        loader = partial(
            AutoModelForCausalLM.from_pretrained,
            use_safetensors=True,
            dtype=torch.float32,
            # Ours is the clearer refusal: transformers names what differs in its log alone.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        model, report = self._read("a causal language model", loader)
        self._check_weights(report)
        rows = model.get_input_embeddings().num_embeddings
        if len(self.tokenizer) > rows:
            raise RefusedError(
                f"model.path: {self._path} has a tokenizer of {len(self.tokenizer)} tokens, more than the {rows} that "
                "the model has embeddings for",
                "Take the tokenizer that belongs to the model.",
            )
        if packed and not _keeps_apart(model):
            raise RefusedError(
                "data.packing: in this model the examples of one row see each other", "Set data.packing to false."
            )
        own_forward = model.forward
        # Replaced rather than wrapped, so that names of parameters stay those of the folder.
        model.forward = partial(_forward, model, own_forward, _takes_pieces(model))
        model.train()
        return model  # type: ignore[no-any-return]

    def _check_files(self) -> None:
        what = f"model.path: {self._path}"
        if not self._path.is_dir():
            raise RefusedError(f"{what} is not a folder that this node can read")
        if not (self._path / "config.json").is_file():
            raise RefusedError(f"{what} has no config.json: it is not the folder of a Hugging Face model")
        if not any(self._path.glob("*.safetensors")):
            raise RefusedError(
                f"{what} has no *.safetensors file",
                "Pickled weights are not read, since they can run code: save the model again with save_pretrained.",
            )

    def _read(self, what: str, load: Callable[..., Any]) -> Any:
        try:
            return load(self._path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            text = str(error).strip().split("\n")[0] or type(error).__name__
            raise RefusedError(f"model.path: {self._path} does not hold {what} that can be loaded: {text}") from error

    def _check_weights(self, report: dict[str, Any]) -> None:
        """transformers makes up what a file lacks; a model with made-up weights is not what was asked for."""
        for kind, problem in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
            found = report.get(kind) or ()
            if names := sorted(name if isinstance(name, str) else name[0] for name in found):
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                raise RefusedError(
                    f"model.path: {self._path} does not fit its config.json: it {problem} {', '.join(names[:5])}{more}"
                )


def _forward(
    model: Any,
    own_forward: Callable[..., Any],
    pieces: bool,
    tokens: torch.Tensor,
    labels: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits, or with labels the loss summed over them.

    `positions` count from 0 in each of the examples that share a row; transformers keeps those from seeing each other.
    """
    placed = {} if positions is None else {"position_ids": positions}
    if labels is None or not pieces:
        logits: torch.Tensor = own_forward(input_ids=tokens, use_cache=False, **placed).logits
        return logits if labels is None else token_loss(logits.flatten(0, 1), labels.flatten())
    hidden = model.base_model(input_ids=tokens, use_cache=False, **placed)[0]
    head = model.get_output_embeddings()
    return summed_loss(hidden, labels, head, head.weight.shape[0])


@torch.no_grad()
def _takes_pieces(model: Any) -> bool:
    """Whether the head on the body's output is all there is to the logits: some models scale or cap them. Asked of a
    fresh model, which does not drop out."""
    head = model.get_output_embeddings()
    if head is None or model.base_model is model:
        return False
    tokens = torch.arange(_PROBE)[None] % head.weight.shape[0]
    own = model(input_ids=tokens, use_cache=False).logits
    ours = head(model.base_model(input_ids=tokens, use_cache=False)[0])
    return ours.shape == own.shape and bool(torch.allclose(ours, own, rtol=1e-4, atol=1e-5))


@torch.no_grad()
def _keeps_apart(model: Any) -> bool:
    """Whether an example reads the same behind another one, with positions that begin anew, as by itself."""
    tokens = torch.arange(_PROBE)[None] % model.get_input_embeddings().num_embeddings
    half = _PROBE // 2
    positions = torch.arange(half).repeat(2)[None]
    behind = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, half:]
    alone = model(input_ids=tokens[:, half:], position_ids=positions[:, half:], use_cache=False).logits
    return bool(torch.allclose(behind, alone, rtol=1e-4, atol=1e-5))
