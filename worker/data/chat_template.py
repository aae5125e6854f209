"""The chat template of a tokenizer: its traits, from a probe, and which characters of a conversation are answers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from trainyard.contract.formats.examples import Chat
from trainyard.contract.formats.records import HALF_PAIR, BadRecordError, is_encodable
from trainyard.loading.turn_end import common_start, without_cut_marker
from worker.data.rendering import RENDERING
from worker.data.template_traits import TemplateTraits, probe_traits, with_fixed_date
from worker.data.tool_calls import LostCallsError, Message, check_calls, unused_mark, with_arguments

Span = tuple[int, int]

_CONTENT = "\ue000"
"""The content of a message of the probe, which no template holds."""
_TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}]
"""Functions of the probe: some templates write calls in another way if the conversation has `tools`."""
_REASONING = ("reasoning_content", "reasoning", "thinking")
"""The fields of a message that hold reasoning, as transformers reads them."""
_REASONING_TEXTS = ("text", "content", "summary", *_REASONING)
"""The keys under which these fields, where they are objects, hold texts. Other keys hold kinds, efforts and
signatures."""
_WRITTEN = {"role", "content", "tool_calls"}
"""Fields that `unwritten_fields` does not check, since other checks cover them."""
EMPTY = "answers_empty"
"""The count of answers without text, by this name in `MarkedText.counts`."""


@dataclass(frozen=True)
class MarkedText:
    """A text, and which of its characters are learned."""

    text: str
    spans: Sequence[Span]
    """Start and end of each part that is learned, in their order."""
    is_rendered: bool = False
    """Whether a chat template wrote it, with all special tokens that it needs."""
    marked_tokens: Sequence[bool] | None = None
    """Which tokens the template itself marks as learned, if it does. Only these tokens of the spans are learned."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of answers: see `worker.data.account`."""


class ChatTemplate:
    """Writes conversations with the template of a tokenizer. Methods raise ValueError for messages that the template
    refuses."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def conversation(self, chat: Chat) -> MarkedText:
        """Return the text of a conversation, whose learned spans are the answers that are trained.

        Raises:
            ValueError: No answer can be learned.
        """
        text = self.render(chat.messages, chat.tools)
        check_calls(chat.messages, text, partial(self._render_or_none, tools=chat.tools))
        counts: Counter[str] = Counter()
        spans = []
        shown = self._answers_at_once(chat.messages, chat.tools, text)
        for turn, message in enumerate(chat.messages):
            if message["role"] != "assistant":
                continue
            counts["answers"] += 1
            if not chat.trained[turn]:
                counts["answers_excluded"] += 1
                continue
            if (at_once := shown.get(turn)) is not None:
                begin, written = at_once
                span, problem = self._if_whole(message, text[begin : written[1]], written)
            else:
                span, problem = self._answer(chat.messages, turn, chat.tools, text)
            if span is None:
                counts[f"answers_{problem}"] += 1
                continue
            spans.append(span)
            counts["answers_trained"] += 1
            counts["reasoning_left_out"] += _leaves_out_reasoning(message, text[slice(*span)])
            counts[EMPTY] += _is_empty(message)
        if not spans:
            stripped = "leaves out a part of each answer, such as its reasoning"
            unlocated = "does not show where answers begin and end"
            raise ValueError(f"the chat template {stripped if counts['answers_stripped'] else unlocated}")
        return MarkedText(text, spans, True, self._marked_tokens(chat), +counts)

    def answer(self, prompt: Sequence[Message], answer: Sequence[Message], tools: Sequence[Any] | None) -> MarkedText:
        """Return the text of a prompt and its answer; all text after the first header of the answer is learned.

        Raises:
            ValueError: The answer cannot be learned.
        """
        messages = [*prompt, *answer]
        text = self.render(messages, tools)
        check_calls(messages, text, partial(self._render_or_none, tools=tools))
        question = self._render_or_none(prompt, tools, prompt=True)
        if question is not None and text.startswith(question):
            start = len(question)
        elif (first := self._start(messages, len(prompt), tools, text)) is not None:
            start = first[1]
        else:
            raise ValueError("the chat template does not show where the answer to the prompt begins")
        given = self._traits_for(tools).answer_start
        begin = start - (len(given) if text[:start].endswith(given) else 0)
        span, _ = self._if_whole(answer[0], text[begin:], (start, len(text)))
        if span is None:
            raise ValueError("the chat template leaves out a part of the answer, such as its reasoning")
        return MarkedText(text, [span], True, counts=+Counter({EMPTY: int(all(map(_is_empty, answer)))}))

    def _marked_tokens(self, chat: Chat) -> list[bool] | None:
        """Return which tokens the template itself marks as learned, of its text tokenised without special tokens; None
        if it marks none."""
        if not self._traits_for(chat.tools).marks_answers:
            return None
        encoded = self._tokenizer.apply_chat_template(
            self._formed(chat.messages, chat.tools),
            tools=list(chat.tools) if chat.tools else None,
            chat_template=self._text(chat.tools),
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        learned = [bool(one) for one in encoded["assistant_masks"]]
        return learned if any(learned) else None

    def unwritten_fields(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, text: str, written: set[str]
    ) -> set[str]:
        """Return the fields of messages that the template does not write in their text.

        Args:
            text: The text of the messages.
            written: Fields that it wrote in other conversations; the fields of this conversation are added.
        """
        others = {name for message in messages for name in message} - _WRITTEN - written
        if not others or self._without(others, messages, tools) == text:
            return others
        needed = {name for name in others if self._without({name}, messages, tools) != text} or others
        written |= needed
        return others - needed

    def _without(
        self, fields: AbstractSet[str], messages: Sequence[Message], tools: Sequence[Any] | None
    ) -> str | None:
        """Return the text of messages without some of their fields; None if the template refuses them."""
        rest = [{name: value for name, value in message.items() if name not in fields} for message in messages]
        return self._render_or_none(rest, tools)

    def leaves_out_tools(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> bool:
        """Return whether the template does not write these tools."""
        return bool(tools) and self._render_or_none(messages, None) == self.render(messages, tools)

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, prompt: bool = False) -> str:
        """Return the text of messages; with `prompt` also the beginning of an answer to them."""
        return self._render(self._formed(messages, tools), tools, prompt=prompt)

    @cached_property
    def traits(self) -> TemplateTraits:
        """The traits that a probe without `tools` finds. A template that refuses a probe has none of its traits."""
        return self._probed(None)

    @cached_property
    def _traits_with_tools(self) -> TemplateTraits:
        traits = self._probed(_TOOLS)
        return traits if traits.headers else self.traits

    def _traits_for(self, tools: Sequence[Any] | None) -> TemplateTraits:
        """Return the traits for a conversation with these tools, for which tokenizers may have another template."""
        return self._traits_with_tools if tools else self.traits

    def _probed(self, tools: Sequence[Any] | None) -> TemplateTraits:
        try:
            template = self._text(tools)
        except ValueError:  # it has templates for other purposes alone
            template = ""
        return probe_traits(template, partial(self._raw, tools=tools))

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether contents must be lists of parts, as for some models that see images."""
        message = {"role": "user", "content": _CONTENT}
        if _CONTENT in self._try([message]):
            return False
        return _CONTENT in self._try([{**message, "content": [{"type": "text", "text": _CONTENT}]}])

    def _raw(self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, prompt: bool = False) -> str:
        """Return the text of messages with their arguments unchanged; empty if the template refuses them."""
        if self._takes_parts:
            messages = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        return self._try(messages, tools, prompt=prompt)

    def _try(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, prompt: bool = False) -> str:
        try:
            return self._render(messages, tools, prompt=prompt)
        except ValueError:
            return ""

    def _formed(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Message]:
        """Return messages with contents and arguments of calls in the form that the template takes."""
        if self._takes_parts:
            messages = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        if not any(message.get("tool_calls") for message in messages):
            return list(messages)
        form = self._traits_for(tools).arguments
        if form == "unknown":
            raise LostCallsError("the model's chat template does not write the arguments of `tool_calls` as JSON")
        return [with_arguments(message, form) for message in messages]

    def _render(self, messages: Sequence[Message], tools: Sequence[Any] | None, *, prompt: bool) -> str:
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": prompt}
        if tools is not None:
            options["tools"] = list(tools)
        try:
            template = self._text(tools)
            with RENDERING.running():
                text = str(self._tokenizer.apply_chat_template(list(messages), chat_template=template, **options))
        except Exception as error:  # templates raise any class, jinja's own too
            reason = str(error) or type(error).__name__
            raise ValueError(f"the chat template refuses these messages: {reason}") from None
        # JSON within a text, such as arguments of a call, has escapes of its own.
        if not is_encodable(text):
            raise BadRecordError(*HALF_PAIR)
        return text

    def _text(self, tools: Sequence[Any] | None) -> str:
        return with_fixed_date(self._tokenizer.get_chat_template(None, list(tools) if tools else None))

    def _render_or_none(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, *, prompt: bool = False
    ) -> str | None:
        """Return the text of messages; None if the template refuses them."""
        try:
            return self.render(messages, tools, prompt=prompt)
        except ValueError:
            return None

    def _answers_at_once(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, text: str
    ) -> dict[int, tuple[int, Span]]:
        """Return the start of each answer's header, and the answer's span, by turn.

        The result is empty if comparison with a single other text does not locate all answers. The time grows with the
        length of a conversation, not with its square.
        """
        traits, mark = self._traits_for(tools), unused_mark(text)
        header = traits.headers.get("assistant", "")
        turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        marked = {turn: {"role": "assistant", "content": mark} for turn in turns}
        changed = (
            self._render_or_none([marked.get(turn, message) for turn, message in enumerate(messages)], tools) or ""
        )
        *before, last = changed.split(mark)
        if not header or not traits.answer_start.startswith(header) or len(before) != len(turns):
            return {}
        # The text after a header, such as an empty thought, may depend on the answer.
        divided = [part.rpartition(header) for part in before]
        parts = [start + end for start, end, _ in divided]
        starts = aligned(text, [*parts, last]) if all(parts) else None
        if starts is None:
            return {}
        result = {}
        for turn, (*_, rest), part, start, following in zip(turns, divided, parts, starts, starts[1:], strict=False):
            begin, is_last = start + len(part) - len(header), turn + 1 == len(messages)
            if not is_last and not text.startswith(traits.turn_end, following):
                return {}
            # An answer may begin like the thought that the generation prompt opens.
            written = common_start(text[begin:following], header + rest)
            given = without_cut_marker(common_start(written, traits.answer_start))
            if text.startswith(traits.answer_start, begin):
                given = traits.answer_start
            end = len(text) if is_last else following + len(traits.turn_end)
            result[turn] = (begin, (begin + max(len(header), len(given)), end))
        return result

    def _answer(
        self, messages: Sequence[Message], turn: int, tools: Sequence[Any] | None, text: str
    ) -> tuple[Span | None, str]:
        """Return the span of the answer at a turn, and otherwise why it is not learned: `stripped` or `unlocated`."""
        if turn:
            # Most templates write a conversation as the beginning of a longer conversation.
            question = self._render_or_none(messages[:turn], tools, prompt=True)
            rendered = self._render_or_none(messages[: turn + 1], tools)
            if question and rendered and rendered.startswith(question) and text.startswith(rendered):
                given = self._traits_for(tools).answer_start
                begin = len(question) - (len(given) if question.endswith(given) else 0)
                return self._if_whole(messages[turn], text[begin : len(rendered)], (len(question), len(rendered)))
        if (first := self._start(messages, turn, tools, text)) is None:
            return None, "unlocated"
        begin, start = first
        if (end := self._end(messages, turn, tools, text, start)) is None:
            return None, "unlocated"
        return self._if_whole(messages[turn], text[begin:end], (start, end))

    def _if_whole(self, message: Message, written: str, span: Span) -> tuple[Span | None, str]:
        """Return the span if the written text, from the header on, holds the whole answer.

        That is its content, the names of its calls, and its reasoning if the template writes that in some answers.
        """
        needed = [message["content"], *(call["function"]["name"] for call in message.get("tool_calls") or ())]
        if self.traits.strips_reasoning:
            needed += _reasoning(message)
        return (None, "stripped") if _missing(needed, written) else (span, "")

    def _start(self, messages: Sequence[Message], turn: int, tools: Sequence[Any] | None, text: str) -> Span | None:
        """Return where the header of the answer at this turn and the answer itself begin; None if that is unknown."""
        traits = self._traits_for(tools)
        header = traits.headers.get("assistant")
        same = self._same_before(messages, turn, tools, text)
        before = self._same_before(messages, turn - 1, tools, text) if turn else 0
        if header is None or same is None or before is None:
            return None
        position = text.rfind(header, before, same)
        if position < 0:
            return None
        # The generation prompt, which the model is given, is not learned.
        given = without_cut_marker(common_start(text[position:same], traits.answer_start))
        return position, position + max(len(header), len(given))

    def _end(
        self, messages: Sequence[Message], turn: int, tools: Sequence[Any] | None, text: str, start: int
    ) -> int | None:
        """Return the end of the answer that begins at `start`: after its turn end, before the next header."""
        if turn + 1 == len(messages):
            return len(text)
        same = self._same_before(messages, turn + 1, tools, text)
        if same is None:
            return None
        traits = self._traits_for(tools)
        if ending := traits.turn_end.strip():
            position = text.rfind(ending, start, same)
            if position < 0:
                return None
            whole = traits.turn_end.lstrip()
            return position + len(whole if text.startswith(whole, position) else ending)
        header = traits.headers.get(messages[turn + 1]["role"])
        return same - len(header) if header and text[:same].endswith(header) else None

    def _same_before(
        self, messages: Sequence[Message], turn: int, tools: Sequence[Any] | None, text: str
    ) -> int | None:
        """Return how many first characters of the text do not depend on the content of the message at a turn."""
        mark = unused_mark(text)
        other = {"role": messages[turn]["role"], "content": mark}
        if messages[turn]["role"] == "tool":
            other = {**messages[turn], "content": mark}
        changed = self._render_or_none([*messages[:turn], other, *messages[turn + 1 :]], tools)
        return None if changed is None or mark not in changed else len(common_start(text, changed))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _reasoning(message: Message) -> list[str]:
    """Return the reasoning of an answer: the distinct texts of all fields that may hold it, including texts in lists
    and objects, which templates leave out."""
    texts = (text for name in _REASONING for text in _texts(message.get(name)))
    return list({_squeezed(text): text for text in texts if text.strip()}.values())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value if isinstance(value, list) else [value.get(name) for name in _REASONING_TEXTS]:
            yield from _texts(inner)


def _is_empty(message: Message) -> bool:
    """Return whether an answer holds nothing but white space."""
    return not (message["content"].strip() or message.get("tool_calls") or _reasoning(message))


def _leaves_out_reasoning(message: Message, text: str) -> bool:
    reasoning = _reasoning(message)
    missing = _missing([*reasoning, message["content"]], text)
    return any(_squeezed(one) in missing for one in reasoning)


def _missing(parts: Sequence[str], text: str) -> list[str]:
    """Return the parts that a text lacks, without white space. Each place of the text counts for one part only: a short
    thought may also be a part of the answer that follows it."""
    rest, missing = _squeezed(text), []
    for part in sorted(filter(None, map(_squeezed, parts)), key=len, reverse=True):
        if part in rest:
            rest = rest.replace(part, "\0", 1)
        else:
            missing.append(part)
    return missing


def aligned(text: str, parts: Sequence[str]) -> list[int] | None:
    """Return where each part begins in a text. The text begins with the first part and ends with the last; the others
    lie between them, in their order. None if a part is missing, or if several positions are possible."""
    first, *inner, last = parts
    end = len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or end < len(first):
        return None
    left, position = [], len(first)
    for part in inner:
        start = text.find(part, position, end)
        if start < 0:
            return None
        left.append(start)
        position = start + len(part)
    right, stop = [], end
    for part in reversed(inner):
        stop = text.rfind(part, len(first), stop)
        right.append(stop)
    return [0, *left, end] if left == right[::-1] else None
