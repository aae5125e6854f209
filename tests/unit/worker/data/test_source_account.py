"""The account of each source: records, tokens, what is learned, and a cached run that has it too."""

import json

import pytest
from pydantic import TypeAdapter

from tests.support import hf
from tests.support.chat_templates import templates, tokenizer_for
from trainyard.contract.spec.text_data import TextFiles, TextMixture
from trainyard.contract.wire.data_accounts import DATA_ACCOUNT
from trainyard.contract.wire.worker_events import EventData, check_event_data
from worker.core.errors import RefusedError
from worker.data.account_summary import summary_of
from worker.data.bad_records import BadRecordReasons
from worker.data.labelled_texts import load_labelled
from worker.data.preference_rows import load_answers
from worker.data.read_limit import ReadLimit
from worker.data.source_account import account_notice
from worker.data.text_examples import DataAccess, load_examples
from worker.data.text_pairs import load_pairs
from worker.data.token_cache import TokenCache
from worker.data.tokenizers import ByteTokenizer, HfTokenizer


def write(path, *records):
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
    return str(path)


def accounts(data, tokenizer=None, length=64, **access):
    made = []
    load_examples(data, tokenizer or ByteTokenizer(), length, DataAccess(on_account=made.append, **access))
    return made


def parts(account, number=0):
    return [
        [f"[{part.text}]" if part.learned else part.text for part in text.parts] for text in account.shown[number].texts
    ]


class TestTexts:
    def test_tokens_are_counted_as_the_loss_takes_them(self, tmp_path):
        path = write(tmp_path / "a.jsonl", {"prompt": "ab", "completion": "cd"}, {"prompt": "", "completion": "xyz"})
        (account,) = accounts(TextFiles(path=path))
        # Each completion has its end token; the first token of a row is no target.
        assert (account.tokens, account.learned_tokens, account.longest) == (9, 6, 5)
        assert (account.records, account.examples, account.rows, account.format) == (2, 2, 1, "completion")
        assert parts(account) == [["ab", "[cd\u2400]"]]

    def test_empty_answers_are_counted(self, tmp_path):
        answers = ("", " \n", "b")
        path = write(tmp_path / "a.jsonl", *({"prompt": "a", "completion": answer} for answer in answers))
        (account,) = accounts(TextFiles(path=path))
        assert (account.counts, account.empty) == ({"answers_empty": 2}, 0)
        assert any("empty answers" in sentence and ": 2;" in sentence for sentence in account.summary)

    def test_empty_texts_without_a_token_to_learn_are_no_answers(self, tmp_path):
        (account,) = accounts(TextFiles(path=write(tmp_path / "a.jsonl", {"text": ""}, {"text": "b"})))
        assert (account.counts, account.empty) == ({}, 1)

    def test_learned_tokens_are_those_of_the_rows(self, tmp_path):
        path = write(tmp_path / "a.jsonl", *({"prompt": "p" * n, "completion": "c" * n} for n in range(1, 9)))
        made = []
        access = DataAccess(on_account=made.append)
        examples, _ = load_examples(TextFiles(path=path, packing=False), ByteTokenizer(), 64, access)
        assert made[0].learned_tokens == examples.rows.weights.sum()

    def test_what_the_length_does_is_counted(self, tmp_path):
        path = write(
            tmp_path / "a.jsonl",
            {"prompt": "a", "completion": "b"},
            {"prompt": "a", "completion": "b" * 30},
            {"prompt": "a" * 30, "completion": "b"},
        )
        (account,) = accounts(TextFiles(path=path), length=16)
        assert (account.truncated, account.too_long, account.empty, account.longest) == (1, 1, 0, 32)

    def test_held_out_rows_are_counted_apart(self, tmp_path):
        path = write(tmp_path / "a.jsonl", *({"prompt": "a", "completion": "b"} for _ in range(10)))
        (account,) = accounts(TextFiles(path=path, eval_fraction=0.2, packing=False))
        assert (account.rows, account.held_out_rows) == (8, 2)

    def test_each_source_has_an_account(self, tmp_path):
        one, other = (write(tmp_path / name, {"text": name}) for name in ("a.jsonl", "b.jsonl"))
        made = accounts(TextFiles(path=one, eval_path=other, eval_sets={"third": one}))
        assert [account.section for account in made] == ["data.path", "data.eval_path", "data.eval_sets.third"]

    def test_refused_source_has_an_account(self, tmp_path):
        path = write(tmp_path / "a.jsonl", {"prompt": "a" * 30, "completion": "b"})
        made = []
        with pytest.raises(RefusedError, match="holds nothing to learn"):
            load_examples(TextFiles(path=path), ByteTokenizer(), 16, DataAccess(on_account=made.append))
        assert (made[0].too_long, made[0].rows) == (1, 0)

    def test_cached_run_has_the_same_account(self, tmp_path):
        path = write(tmp_path / "a.jsonl", {"prompt": "a", "completion": "b"}, "no JSON", {"prompt": "c"})
        data = TextFiles(path=path, on_bad_line="skip")
        first, again = (accounts(data, cache=TokenCache(tmp_path / "cache")) for _ in range(2))
        assert first == again
        assert first[0].bad_records == 2

    def test_bad_records_are_counted_by_reason(self, tmp_path):
        path = write(
            tmp_path / "a.jsonl", {"prompt": "a", "completion": "b"}, "no", *["[1"] * 3, *['{"prompt": 1}'] * 2
        )
        (account,) = accounts(TextFiles(path=path, on_bad_line="skip"))
        assert sum(reason.records for reason in account.reasons) == account.bad_records == 6
        assert [reason.records for reason in account.reasons] == [3, 2, 1]
        assert account.reasons[0].first == f"{path}, line 3"

    def test_reason_names_the_values_and_no_position(self):
        reasons = BadRecordReasons()
        for number in range(3):
            reasons.add(f"has a `weight` of message {number} that is not 0 or 1", "a", "Remove it.")
            reasons.add(f"`messages.{number}` has no `content`", "a")
        first, second = reasons.facts()
        assert (first["problem"], first["hint"]) == ("has a `weight` of message N that is not 0 or 1", "Remove it.")
        assert (second["problem"], second["records"]) == ("`messages.N` has no `content`", 3)

    def test_remedy_names_the_field_of_the_source(self, tmp_path):
        path = write(tmp_path / "a.jsonl", {"text": "a"}, {"text": "a", "messages": [{}]})
        sources = [{"path": path, "weight": 1, "name": "a"}]
        (account,) = accounts(TextMixture(source="mixture", sources=sources, on_bad_line="skip"))
        assert account.reasons[0].hint == "Set data.sources.0.format to `text` or `chat`."

    def test_remedy_of_the_first_line_is_that_of_all(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('No JSON.\nNo JSON either.\n{"text": "abc"}\n')
        data = TextFiles(path=str(path), format="text", on_bad_line="skip", max_bad_lines=9)
        (account,) = accounts(data)
        assert [(reason.records, reason.hint) for reason in account.reasons] == [
            (2, "Write each record as a JSON object; CSV and plain text are not read.")
        ]

    def test_reasons_are_bounded(self):
        reasons = BadRecordReasons()
        for number in range(3000):
            reasons.add("x" * (number % 1500), "a")
        reasons.add("is not valid: byte 7", "file, line 3")
        assert len(reasons.facts()) == 10
        assert all(len(reason["problem"]) <= 600 for reason in reasons.facts())

    def test_hostile_text_is_stored_as_it_is(self, tmp_path):
        text = "<script>\x1b[2J\u202e\0\ud800"
        path = write(tmp_path / "a.jsonl", {"prompt": "a", "completion": text})
        with pytest.raises(RefusedError):
            accounts(TextFiles(path=path))
        path = write(tmp_path / "a.jsonl", {"prompt": "a", "completion": text[:-1]})
        (account,) = accounts(TextFiles(path=path))
        assert parts(account) == [["a", "[<script>\x1b[2J\u202e\u2400\u2400]"]]


class TestLimits:
    def test_only_the_first_records_are_read(self, tmp_path):
        lines = [{"prompt": "a", "completion": "b"}] * 5 + ["no JSON"]
        data = TextFiles(path=write(tmp_path / "a.jsonl", *lines))
        (account,) = accounts(data, limit=ReadLimit(5, 60))
        assert (account.records, account.complete, account.bad_records) == (5, False, 0)
        (account,) = accounts(data.model_copy(update={"on_bad_line": "skip"}), limit=ReadLimit(6, 60))
        assert (account.records, account.complete, account.bad_records) == (6, True, 1)

    def test_each_source_has_the_limit(self, tmp_path):
        path = write(tmp_path / "a.jsonl", *({"text": "abc"} for _ in range(5)))
        made = accounts(TextFiles(path=path, eval_path=path), limit=ReadLimit(3, 60))
        assert [account.records for account in made] == [3, 3]

    def test_reading_ends_with_the_time(self, tmp_path):
        path = write(tmp_path / "a.jsonl", *({"text": "abc"} for _ in range(5)))
        with pytest.raises(RefusedError):
            accounts(TextFiles(path=path), limit=ReadLimit(3, -1))

    def test_sources_after_a_refused_one_are_read(self, tmp_path):
        bad, empty = write(tmp_path / "a.jsonl", {"prompt": "a" * 99, "completion": "b"}), write(tmp_path / "b.jsonl")
        data = TextFiles(path=bad, eval_sets={"one": empty, "two": write(tmp_path / "c.jsonl", {"text": "abc"})})
        made = []
        access = DataAccess(on_account=made.append, limit=ReadLimit(9, 60))
        with pytest.raises(
            RefusedError, match=r"data.path: .* holds nothing to learn.*; data\.eval_sets\.one: "
        ) as caught:
            load_examples(data, ByteTokenizer(), 16, access)
        assert [account.section for account in made] == ["data.path", "data.eval_sets.one", "data.eval_sets.two"]
        assert caught.value.hint

    def test_records_are_announced(self, tmp_path):
        path, calls = write(tmp_path / "a.jsonl", *({"text": "abc"} for _ in range(5))), []
        accounts(TextFiles(path=path), limit=ReadLimit(3, 60, lambda: calls.append(1)))
        assert len(calls) >= 3


@pytest.fixture(scope="module")
def qwen3():
    template, variant = templates()["qwen3"]
    tokenizer = tokenizer_for(template, variant or "")
    tokenizer.chat_template = template
    return HfTokenizer(tokenizer)


CHAT = {
    "messages": [
        {"role": "user", "content": "What?"},
        {"role": "assistant", "content": "One.", "reasoning_content": "First."},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Two.", "reasoning_content": "Second."},
    ]
}


class TestChats:
    def test_answers_that_are_not_learned_are_counted(self, tmp_path, qwen3):
        (account,) = accounts(TextFiles(path=write(tmp_path / "a.jsonl", CHAT, CHAT)), qwen3, 500)
        assert account.counts == {"answers": 4, "answers_trained": 2, "answers_stripped": 2}
        assert parts(account)[0][1] == "[<think>\nSecond.\n</think>\n\nTwo.<|im_end|>\n]"

    def test_traits_of_the_template_are_stated(self, tmp_path, qwen3):
        (account,) = accounts(TextFiles(path=write(tmp_path / "a.jsonl", CHAT)), qwen3, 500)
        assert account.template is not None
        assert (account.template.turn_end, account.template.end_token) == ("<|im_end|>", "<eos>")
        assert account.template.strips_reasoning
        assert "an answer ends with `<|im_end|>`; the tokenizer's end token is `<eos>`" in account.summary

    def test_empty_answers_are_counted(self, tmp_path, qwen3):
        call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
        thought = {"role": "assistant", "content": "", "reasoning_content": "Why?"}
        turns = [{"role": "assistant", "content": " "}, call, {"role": "tool", "content": ""}, thought]
        path = write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "a"}, *turns]})
        (account,) = accounts(TextFiles(path=path), qwen3, 500)
        assert account.counts["answers_empty"] == 1

    def test_texts_have_no_template(self, tmp_path, qwen3):
        (account,) = accounts(TextFiles(path=write(tmp_path / "a.jsonl", {"text": "abc"})), qwen3, 500)
        assert account.template is None
        assert parts(account) == [["a", "[bc<eos>]"]]


def test_header_and_date_of_the_template_are_stated(tmp_path):
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<eos>{% endfor %}"
    made = tokenizer_for(template)
    made.chat_template = template
    path = write(tmp_path / "a.jsonl", hf.chats(1)[0])
    (account,) = accounts(TextFiles(path=path), HfTokenizer(made), length=512)
    assert (account.template.learned_header, account.template.generation_start) == ("<|assistant|>", "")
    assert account.template.fixed_date == "26 July 2024"
    shown = "".join(part.text for part in account.shown[0].texts[0].parts)
    assert shown.startswith("26 Jul 2024")
    assert any("header of an answer is learned too: `<|assistant|>`" in sentence for sentence in account.summary)
    assert any("for which 26 July 2024 stands" in sentence for sentence in account.summary)


class TestPreferences:
    def load(self, tmp_path, records, formats, **options):
        made, path = [], write(tmp_path / "a.jsonl", *records)
        access = DataAccess(on_account=made.append, limit=options.pop("limit", None))
        load_answers("data.path", TextFiles(path=path), formats, ByteTokenizer(), 16, access, **options)
        return made[0]

    def test_pairs(self, tmp_path):
        pairs = [{"prompt": "ab", "chosen": "c", "rejected": "de"}] * 3 + [
            {"prompt": "a" * 20, "chosen": "c", "rejected": "d"}
        ]
        account = self.load(tmp_path, pairs, ["preference"])
        assert (account.examples, account.rows, account.too_long, account.longest) == (4, 3, 1, 22)
        assert account.learned_tokens == 3 * (2 + 3) + 2 + 2
        assert [text.name for text in account.shown[0].texts] == ["chosen", "rejected"]
        assert parts(account) == [["ab", "[c\u2400]"], ["ab", "[de\u2400]"]]

    def test_empty_answers_are_counted(self, tmp_path):
        pairs = [{"prompt": "ab", "chosen": "c", "rejected": ""}, {"prompt": "a", "chosen": "c", "rejected": "d"}]
        assert self.load(tmp_path, pairs, ["preference"]).counts == {"answers_empty": 1}

    def test_messages_of_others_in_answers_are_counted(self, tmp_path):
        turns = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        pair = {"prompt": "ab", "chosen": turns, "rejected": turns[:1]}
        made, path = [], write(tmp_path / "a.jsonl", pair, {**pair, "chosen": turns[:1], "rejected": turns})
        access, tokenizer = DataAccess(on_account=made.append), HfTokenizer(hf.train_tokenizer(["text"]))
        load_answers("data.path", TextFiles(path=path), ["preference"], tokenizer, 64, access)
        assert made[0].counts == {"answers_with_turns": 2}

    def test_answers_with_a_label(self, tmp_path):
        answers = [{"prompt": "ab", "completion": str(number), "label": bool(number)} for number in range(2)]
        account = self.load(tmp_path, answers, ["unpaired_preference"])
        assert [example.texts[0].label for example in account.shown] == ["not desirable", "desirable"]
        assert account.counts == {"answers_desirable": 1, "answers_undesirable": 1}
        assert "answers that are not desirable: 1" in account.summary

    def test_limit_and_bad_records(self, tmp_path):
        pairs = ["no", *[{"prompt": "ab", "chosen": "c", "rejected": "d"}] * 5]
        account = self.load(tmp_path, pairs, ["preference"], limit=ReadLimit(3, 60), max_bad=9)
        assert (account.records, account.bad_records, account.complete) == (3, 1, False)
        assert account.reasons[0].first.endswith("a.jsonl, line 1")


class TestEvents:
    def account(self, tmp_path, tokenizer):
        messages = CHAT["messages"] + [{"role": "user", "content": "<long>" * 9000}, CHAT["messages"][1]]
        wide = {"messages": [*messages, {"role": "user", "content": "ü" * 9000}, CHAT["messages"][3]]}
        return accounts(TextFiles(path=write(tmp_path / "a.jsonl", wide, wide, wide)), tokenizer, 99999)[0]

    def test_event_of_long_examples_is_accepted(self, tmp_path, qwen3):
        notice = account_notice(self.account(tmp_path, qwen3))
        data = TypeAdapter(EventData).validate_python(notice.data)
        check_event_data(DATA_ACCOUNT, data)
        assert len(notice.message) < 4096
        assert notice.kind == DATA_ACCOUNT

    def test_event_without_counts_is_refused(self):
        with pytest.raises(ValueError, match="section"):
            check_event_data(DATA_ACCOUNT, {"records": 3})

    def test_summary_states_counts_of_other_releases(self, tmp_path, qwen3):
        account = self.account(tmp_path, qwen3).model_copy(update={"counts": {"pairs_equal": 3}})
        assert "pairs_equal: 3" in summary_of(account)


class TestOtherTexts:
    def test_labelled_texts(self, tmp_path):
        records = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(8)]
        data, made = TextFiles(path=write(tmp_path / "a.jsonl", *records), eval_fraction=0.25), []
        load_labelled(data, hf.train_tokenizer(["text"]), 16, access=DataAccess(on_account=made.append))
        (account,) = made
        assert (account.examples, account.rows, account.held_out_rows, account.learned_tokens) == (8, 6, 2, None)
        assert [text.label for example in account.shown for text in example.texts] == ["a", "a", "b"]

    def test_pairs(self, tmp_path):
        records = [{"anchor": f"q{n}", "positive": f"a{n}", "negative": f"b{n}"} for n in range(4)]
        data, made = TextFiles(path=write(tmp_path / "a.jsonl", *records)), []
        load_pairs(data, hf.train_tokenizer(["text"]), 16, 2, 0, DataAccess(on_account=made.append))
        assert parts(made[0]) == [["q0"], ["a0"], ["b0"]]
