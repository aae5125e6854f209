"""Conversations of many shapes, and published chat templates with variants that mark what they would have learned.

The templates come with TRL, which is installed for tests. For many, TRL has a variant for training whose
`{% generation %}` blocks mark the answers: the reference. The others here are small, with and without these blocks.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.contract.formats.examples import Chat
from worker.data.tokenizers import HfTokenizer

_WIDE = "\uff5c"
"""The bar of DeepSeek's markers."""
_SPECIAL = re.compile(
    rf"<[|{_WIDE}][^'\"<>{{}} ]{{1,40}}[|{_WIDE}]>|<\|?/?[a-z_]{{1,30}}\|?>|</?s>|\[/?INST\]|\[gMASK\]|\[TOOL_CALLS\]"
)
CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "b": None, "c": "it's"}},
}
RESULT = {"role": "tool", "name": "add", "content": "3", "tool_call_id": "abcdefgh1"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def thought(reasoning: str, content: str) -> dict[str, Any]:
    return answer(f"<think>\n{reasoning}\n</think>\n\n{content}")


SHAPES: dict[str, list[dict[str, Any]]] = {
    "one": [user("What is 1+1?"), answer("It is 2.")],
    "with a system message": [system("Be brief."), user("What?"), answer("Yes.")],
    "two answers": [user("What?"), answer("One."), user("And?"), answer("Two.")],
    "begins with an answer": [answer("Hello, I am a bot."), user("Hi"), answer("Bye")],
    "system, then an answer": [system("Play."), answer("Hello, traveller."), user("Hi"), answer("Bye")],
    "reasoning": [user("What?"), answer("Two.", reasoning_content="One and one.")],
    "reasoning twice": [
        user("What?"),
        answer("One.", reasoning_content="First r."),
        user("And?"),
        answer("Two.", reasoning_content="Second r."),
    ],
    "thoughts in the text": [user("What?"), thought("First r.", "One."), user("And?"), thought("Second r.", "Two.")],
    "a call": [user("1 and 2?"), answer("", tool_calls=[CALL]), RESULT, answer("It is 3.")],
    "a call with a text": [
        user("1 and 2?"),
        answer("Let me add.", tool_calls=[CALL]),
        RESULT,
        answer("It is 3."),
        user("Thanks"),
        answer("Welcome."),
    ],
    "white space": [user(" What? "), answer(" One.\n\n"), user("And?"), answer("\nTwo. ")],
    "equal texts": [user("Yes"), answer("Yes"), user("Yes"), answer("Yes")],
    "two questions": [user("a"), user("b"), answer("c")],
    "two answers in a row": [user("a"), answer("b"), answer("c")],
    "an empty answer": [user("a"), answer(""), user("b"), answer("c")],
    "other scripts": [user("é漢"), answer("🙂 ünï")],
}
"""Messages by a description of their shape."""

_LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set first = '<<SYS>>\\n' + "
    "messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% else %}{% set rest = messages %}{% set first = '' %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '<s>[INST] ' + (first if loop.first else '') + m['content'].strip() + ' [/INST]' }}"
    "{% else %}BEGIN{{ ' ' + m['content'].strip() + ' </s>' }}END{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}BEGIN{% if m.tool_calls %}{{ '[TOOL_CALLS]' + (m.tool_calls | "
    "map(attribute='function') | list | tojson) + '</s>' }}{% else %}{{ m['content'] + '</s>' }}{% endif %}END"
    "{% elif m['role'] == 'tool' %}{{ '[TOOL_RESULTS]' + m['content'] + '[/TOOL_RESULTS]' }}"
    "{% else %}{{ raise_exception('Only user, tool and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
_ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' }}{% if m['role'] == 'assistant' %}BEGIN"
    "{{ m['content'] + '</s>\\n' }}END{% else %}{{ m['content'] + '</s>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
_NO_END = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ 'Bot: ' }}BEGIN{{ m['content'] + '\\n' }}END"
    "{% else %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Bot: ' }}{% endif %}"
)
_TEXT_ARGUMENTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}BEGIN{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + c.function.arguments + '</call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}END{% else %}{{ m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SMALL = {
    "small: llama 2": _LLAMA_2,
    "small: mistral": _MISTRAL,
    "small: zephyr": _ZEPHYR,
    "small: no end": _NO_END,
    "small: arguments as text": _TEXT_ARGUMENTS,
}


def published() -> Path:
    """Return the folder of the templates that TRL has."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        raise LookupError("trl is not installed")
    return Path(spec.origin).parent / "chat_templates"


def templates() -> dict[str, tuple[str, str | None]]:
    """Return each template, and the variant that marks the answers if there is one."""
    folder = published()
    result: dict[str, tuple[str, str | None]] = {
        name: (text.replace("BEGIN", "").replace("END", ""), _marked(text)) for name, text in _SMALL.items()
    }
    for path in sorted(folder.glob("*.jinja")):
        if not path.stem.endswith("_training"):
            variant = folder / f"{path.stem}_training.jinja"
            result[path.stem] = (path.read_text(), variant.read_text() if variant.is_file() else None)
    return result


def _marked(text: str) -> str:
    return text.replace("BEGIN", "{% generation %}").replace("END", "{% endgeneration %}")


def tokenizer_for(*texts: str) -> Any:
    """Return a tokenizer of bytes whose special tokens are the markers of these templates."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = sorted({match for text in texts for match in _SPECIAL.findall(text)} | {"<bos>", "<eos>"})
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(["hello world"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>")


def chat_of(messages: list[dict[str, Any]]) -> Chat:
    """Return messages as the reader of records makes them: all answers are trained."""
    has_calls = any("tool_calls" in message for message in messages)
    trained = tuple(message["role"] == "assistant" for message in messages)
    return Chat([dict(message) for message in messages], TOOLS if has_calls else None, trained)


def outcomes(template: str, variant: str | None) -> Iterator[tuple[str, str]]:
    """Yield what becomes of each shape: that it agrees with the variant's marks, or the text that is learned, or why it
    is refused."""
    made = tokenizer_for(template, variant or "")
    made.chat_template = template
    tokenizer = HfTokenizer(made)
    for name, messages in SHAPES.items():
        chat = chat_of(messages)
        try:
            marked = tokenizer.conversation(chat)
            (segment,) = tokenizer.encode([marked])
        except ValueError as error:
            yield name, f"refused: {str(error).splitlines()[0]}"
            continue
        reference = _reference(made, chat, variant) if variant else None
        learned = str(made.decode(segment.tokens[segment.targets]))
        left_out = {key: value for key, value in marked.counts.items() if key not in ("answers", "answers_trained")}
        agrees = (
            reference is not None
            and reference[0] == segment.tokens.tolist()
            and (np.array(reference[1]) == segment.targets).all()
        )
        yield name, ("agrees" if agrees else f"learns {learned!r}") + (f" {left_out}" if left_out else "")


def _reference(tokenizer: Any, chat: Chat, variant: str) -> tuple[list[int], list[bool]] | None:
    """Return the tokens that the variant writes, and those that it marks without what the model is given where it shall
    answer; None if the variant refuses the messages."""
    options = {"chat_template": variant, "tools": chat.tools, "return_dict": True, "return_assistant_tokens_mask": True}
    try:
        encoded = tokenizer.apply_chat_template(chat.messages, **options)
    except Exception:  # templates raise any class
        return None
    ids, mask = list(encoded["input_ids"]), [bool(one) for one in encoded["assistant_masks"]]
    question = [user("q")]
    before, begun = (
        tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=prompt)
        for prompt in (False, True)
    )
    given = tokenizer(begun.removeprefix(before), add_special_tokens=False)["input_ids"]
    for start in range(len(ids)):
        same = next(
            (n for n, (one, other) in enumerate(zip(ids[start:], given, strict=False)) if one != other), len(given)
        )
        if same and given[0] in tokenizer.added_tokens_decoder:
            mask[start : start + same] = [False] * same
    return ids, mask
