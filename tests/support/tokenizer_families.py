"""Small tokenizers of each family, made without any download: how they divide text, and which tokens they add."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

_TEXT = Path(__file__).read_text() * 2 + " The code is:\n def main answer é漢🙂 2 + 2 = 4." * 9
_SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]


def _trained(model: Any, trainer: Any, pre: Any, decoder: Any = None, normalizer: Any = None) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre
    if decoder is not None:
        tokenizer.decoder = decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer


def byte_level(*, prefix_space: bool = False, trim: bool = False) -> Any:
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    pre = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=_SPECIAL, initial_alphabet=pre.alphabet(), show_progress=False
    )
    tokenizer = _trained(models.BPE(), trainer, pre, decoders.ByteLevel())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer


def metaspace(scheme: str) -> Any:
    from tokenizers import decoders, models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=_SPECIAL, show_progress=False)
    return _trained(
        models.BPE(byte_fallback=False, unk_token="<unk>"),
        trainer,
        pre_tokenizers.Metaspace(prepend_scheme=scheme),
        decoders.Metaspace(prepend_scheme=scheme),
    )


def bert_like() -> Any:
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    special = [*_SPECIAL, "[UNK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    return _trained(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        normalizers.BertNormalizer(lowercase=True),
    )


def unigram() -> Any:
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=_SPECIAL, unk_token="<unk>", show_progress=False)
    return _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace(), normalizers.NFKC())


def adding(tokenizer: Any, template: str) -> Any:
    """Return the tokenizer with a post-processor that adds special tokens, such as `<s> $A </s>`."""
    from tokenizers import processors

    names = [name for name in ("<s>", "</s>") if name in template]
    pairs = [(name, tokenizer.token_to_id(name)) for name in names]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)
    return tokenizer


def fast(tokenizer: Any, *, end: str | None = "</s>") -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token="<s>", pad_token="<pad>")


def byt5() -> Any:
    """A tokenizer in Python, which tells no characters of its tokens, and adds an end token."""
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()


def spaces_in_python() -> Any:
    """A tokenizer in Python that divides texts at white space, and adds nothing."""
    from transformers import PreTrainedTokenizer

    class SpaceTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            self._names = dict.fromkeys(["<unk>", "</s>", *_TEXT.split()])
            self._ids = {name: number for number, name in enumerate(self._names)}
            super().__init__(unk_token="<unk>", eos_token="</s>", **options)

        @property
        def vocab_size(self) -> int:
            return len(self._ids)

        def get_vocab(self) -> dict[str, int]:
            return dict(self._ids)

        def _tokenize(self, text: str, **_: Any) -> list[str]:
            return text.split()

        def _convert_token_to_id(self, token: str) -> int:
            return self._ids.get(token, 0)

        def _convert_id_to_token(self, index: int) -> str:
            return list(self._names)[index]

    return SpaceTokenizer()


FAMILIES: dict[str, Callable[[], Any]] = {
    "bytes": lambda: fast(byte_level()),
    "bytes, prefixed": lambda: fast(byte_level(prefix_space=True)),
    "bytes, trimmed": lambda: fast(byte_level(trim=True)),
    "bytes, begun": lambda: fast(adding(byte_level(), "<s> $A")),
    "bytes, begun and ended": lambda: fast(adding(byte_level(), "<s> $A </s>")),
    "bytes, ended": lambda: fast(adding(byte_level(), "$A </s>")),
    "metaspace first": lambda: fast(metaspace("first")),
    "metaspace first, begun": lambda: fast(adding(metaspace("first"), "<s> $A")),
    "metaspace always": lambda: fast(metaspace("always")),
    "metaspace never": lambda: fast(metaspace("never")),
    "unigram": lambda: fast(adding(unigram(), "$A </s>")),
    "pieces of words": lambda: fast(bert_like()),
    "pieces of words, begun and ended": lambda: fast(adding(bert_like(), "<s> $A </s>")),
    "python, words": spaces_in_python,
    "python, bytes, ended": byt5,
}
"""By a description: how text is divided, and which special tokens are added."""
