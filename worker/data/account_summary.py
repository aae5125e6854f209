"""The account of a source as sentences. Pure functions."""

from collections.abc import Iterator, Mapping

from trainyard.contract.wire.data_accounts import DataAccount, TemplateFacts

_QUOTED = 200
"""Characters of a text that a sentence quotes."""
_COUNTS = {
    "answers_trained": "answers learned: {n} of {answers}",
    "answers_excluded": "answers not learned, since the records exclude them: {n} of {answers}",
    "answers_stripped": "answers not learned, since the chat template leaves out a part of them, such as the reasoning "
    "of an answer before the last: {n} of {answers}",
    "answers_unlocated": "answers not learned, since the chat template does not show where they begin and end: {n} of "
    "{answers}",
    "reasoning_left_out": "answers learned without their reasoning, which the chat template does not write: {n}",
    "answers_desirable": "answers that are desirable: {n}",
    "answers_undesirable": "answers that are not desirable: {n}",
    "answers_with_turns": "answers with messages of other roles, whose tokens are compared too: {n}",
    "answers_empty": "empty answers, from which the model learns to end at once: {n}; remove their records unless that "
    "is meant",
    "tools_unused": "examples whose `tools` the chat template does not write, so that the model does not see them: "
    "{n}; use a model whose template writes `tools`",
    "end_tokens_present": "texts that end with the end token, which is not added again: {n}",
    "specials_doubled": "examples with a special token twice in a row: {n}",
}
"""The sentence of each count. Another count is stated by its name."""


def summary_of(account: DataAccount) -> list[str]:
    """Return the contents of an account as sentences without a period."""
    return [*_records(account), *_answers(account), *_tokens(account), *_template(account.template)]


def headline_of(account: DataAccount) -> str:
    """Return the main facts of an account as a sentence, for the list of events."""
    return "; ".join(sentence for part in (_records, _tokens) for sentence in [*part(account)][:1])


def count_sentence(name: str, counts: Mapping[str, int]) -> str:
    """Return a count of `worker.data.account` as a sentence without a period."""
    text = _COUNTS.get(name, f"{name}: {{n}}")
    return text.format(n=f"{counts[name]:,}", answers=f"{counts.get('answers', 0):,}")


def _records(account: DataAccount) -> Iterator[str]:
    which = "" if account.complete else "the first "
    examples = f"{_number(account.examples, 'example')} of format {account.format}"
    yield f"read {which}{_number(account.records, 'record')}: {examples}"
    if account.bad_records:
        yield f"left out, since they hold no example: {_number(account.bad_records, 'record')}"
    if account.unread_fields:
        names = ", ".join(f"`{name}`" for name in account.unread_fields)
        yield f"fields of the records that the model does not see: {names}"
    for reason in account.reasons:
        yield f"{_number(reason.records, 'record')}, first {reason.first}: {reason.problem.removeprefix(': ')}"


def _answers(account: DataAccount) -> Iterator[str]:
    for name in dict.fromkeys((*_COUNTS, *account.counts)):
        if account.counts.get(name, 0) and name != "answers":
            yield count_sentence(name, account.counts)


def _tokens(account: DataAccount) -> Iterator[str]:
    if not account.tokens:
        return
    if account.learned_tokens is not None:
        share = f"{account.learned_tokens / account.tokens:.1%}"
        yield f"tokens learned: {account.learned_tokens:,} of {account.tokens:,} ({share})"
    yield f"tokens of the longest example: {account.longest:,}"
    if account.rows or account.held_out_rows:
        held_out = f", and {account.held_out_rows:,} held out for evaluation" if account.held_out_rows else ""
        yield f"rows of at most {_number(account.max_length, 'token')}: {account.rows:,}{held_out}"
    if account.truncated:
        yield f"cut after {_number(account.max_length, 'token')}: {_number(account.truncated, 'example')}"
    if account.too_long:
        nothing = f"nothing to learn in the first {_number(account.max_length, 'token')}"
        yield f"left out, with {nothing}: {_number(account.too_long, 'example')}"
    if account.empty:
        yield f"left out, with nothing to learn: {_number(account.empty, 'example')}"
    if account.equal:
        yield f"left out, with two equal answers: {_number(account.equal, 'pair')}"


def _template(template: TemplateFacts | None) -> Iterator[str]:
    if template is None:
        return
    if not template.turn_end:
        yield "an answer ends with no special token, so the model may continue past the end of an answer"
    elif template.turn_end == template.end_token:
        yield f"an answer ends with `{template.turn_end}`"
    else:
        other = (
            f"the tokenizer's end token is `{template.end_token}`" if template.end_token else "the tokenizer has none"
        )
        yield f"an answer ends with `{template.turn_end}`; {other}"
    if template.system_prompt:
        yield f"the chat template adds a system message where there is none: {_quoted(template.system_prompt)}"
    if template.learned_header:
        header = _quoted(template.learned_header)
        yield f"the chat template has no generation prompt, so that the header of an answer is learned too: `{header}`"
    if template.fixed_date:
        yield f"the chat template writes the date of the day, for which {template.fixed_date} stands"
    if template.opens_thought:
        yield f"the generation prompt opens a thought: `{_quoted(template.opens_thought)}`"
    if template.strips_reasoning:
        yield "the chat template leaves out the reasoning of earlier answers"
    if template.arguments == "text":
        yield "the chat template takes the arguments of calls as text"


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}..."


def _number(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'' if count == 1 else 's'}"
