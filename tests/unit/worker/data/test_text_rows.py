"""Files of texts as rows of bytes: targets, packing, and invalid files."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.decoders import GptModel
from trainyard.contract.spec.text_data import TextFiles
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.data import records
from worker.data.examples import IGNORED_LABEL, BatchTokens
from worker.data.row_layout import OPEN_ROWS, pack_sizes
from worker.data.text_examples import DataAccess, load_examples
from worker.data.token_rows import RowExamples
from worker.data.tokenizers import ByteTokenizer
from worker.engine.evaluation import held_out_sets
from worker.tasks.causal_lm import build_builtin_on_text, row_length
from worker.tasks.select import select_task

CPU = torch.device("cpu")


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "data.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return str(path)

    return write


def rows(path, length=16, **options):
    return load_examples(TextFiles(path=path, **options), ByteTokenizer(), length)[0].rows


def batch(result, packed=False):
    examples = RowExamples((), len(result), 0, rows=result, packed=packed)
    return [tensor.tolist() for tensor in examples.train_batch(np.arange(len(result)), CPU)]


def refusal(path, **options):
    with pytest.raises(RefusedError) as caught:
        rows(path, **options)
    return str(caught.value).removeprefix(f"data.path: {path}")


def test_link_out_of_the_allowed_roots_is_refused(file, tmp_path):
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link.jsonl").symlink_to(file({"text": "abc"}))
    (allowed / "real.jsonl").write_text('{"text": "abc"}\n')
    (allowed / "inner.jsonl").symlink_to(allowed / "real.jsonl")
    roots = AllowedRoots(allowed=(str(allowed),), excluded=(str(allowed / "state"),))
    for name, refused in (("real", False), ("inner", False), ("link", True)):
        path = str(allowed / f"{name}.jsonl")
        data = TextFiles(path=path, packing=False)
        if refused:
            with pytest.raises(RefusedError, match="leads out of the folders that this service allows"):
                build_builtin_on_text(GptModel(context=24, heads=2), data, DataAccess(roots))
        else:
            assert len(load_examples(data, ByteTokenizer(), 16, DataAccess(roots))[0].rows) == 1


def test_loading_a_long_file_makes_progress(file, monkeypatch):
    monkeypatch.setattr(records, "CHUNK_BYTES", 2**12)
    marks = []
    path = file(*({"text": "a"} for _ in range(2500)))
    load_examples(TextFiles(path=path), ByteTokenizer(), 16, DataAccess(on_progress=lambda: marks.append(1)))
    assert len(marks) >= os.path.getsize(path) / 2**12


def test_largest_examples_are_the_longest_training_rows(file):
    result = rows(file(*({"text": "a" * length} for length in (3, 9, 5, 9, 12))), packing=False)
    examples = RowExamples((), 4, 1, rows=result, packed=False)
    assert examples.largest(3).tolist() == [1, 3, 2]


@pytest.mark.parametrize("packing", [True, False])
def test_tokens_are_those_that_the_model_computes(file, packing):
    result = rows(file(*({"text": "a" * length} for length in (3, 9, 2, 5))), packing=packing)
    examples = RowExamples((), len(result), 0, rows=result, packed=packing)
    for row in range(len(result)):
        _, _, *positions = examples.train_batch(np.array([row]), CPU)
        length = int(result.lengths[row]) - 1
        starts = np.flatnonzero(positions[0][0].numpy() == 0).tolist() if packing else [0]
        segments = np.diff([*starts, length])
        targets = int(result.weights[row])
        assert examples.token_counts.of(np.array([row])) == BatchTokens(length, float((segments**2).sum()), targets)


@pytest.mark.parametrize(("context", "length"), [(None, 8), (7, 7), (5, 6)])
@pytest.mark.parametrize("packing", [True, False])
def test_padding_to_a_multiple_has_no_target_and_counts_no_token(file, packing, context, length):
    result = rows(file({"text": "abcdef"}, {"text": "gh"}), length=7, packing=packing)
    plain = RowExamples((), len(result), 0, rows=result, packed=packing)
    padded = replace(plain, multiple=4, context=context)
    indices = np.arange(len(result))
    before, after = plain.train_batch(indices, CPU), padded.train_batch(indices, CPU)
    assert after[0].shape == (2, length)
    assert torch.equal(after[0][:, :6], before[0])
    assert torch.equal(after[1][:, :6], before[1])
    assert (after[1][:, 6:] == IGNORED_LABEL).all()
    assert padded.token_counts.of(indices) == plain.token_counts.of(indices)
    if packing:
        assert (after[3][:, -1] == length).all()
        assert after[3][0, 0] == before[3][0, 0]


@pytest.mark.parametrize("packing", [True, False])
def test_batches_end_with_the_number_of_their_targets(file, packing):
    path = file(*({"prompt": "abc", "completion": "x" * n} for n in range(1, 6)))
    result = rows(path, packing=packing)
    plain = RowExamples((), len(result), 0, rows=result, packed=packing)
    indices = np.arange(len(result))
    before, after = plain.train_batch(indices, CPU), replace(plain, counts_targets=True).train_batch(indices, CPU)
    assert len(before) == (4 if packing else 2)
    assert all(torch.equal(one, other) for one, other in zip(before, after[:-1], strict=True))
    assert after[-1].shape == ((before[1] != IGNORED_LABEL).sum(), 0)
    assert len(after[-1]) == result.weights.sum() == plain.token_counts.of(indices).targets


@pytest.mark.parametrize(("backend", "multiple"), [("nccl", 128), ("gloo", 1)])
def test_rows_are_padded_to_a_multiple_on_gpus_alone(file, backend, multiple):
    spec = parse_spec(
        {
            "task": "causal_lm",
            "model": {"source": "builtin", "name": "gpt", "width": 16, "heads": 2, "context": 300},
            "data": {"source": "jsonl", "path": file({"text": "abc"})},
            "backend": backend,
            "steps": 1,
        }
    )
    examples = select_task(spec).examples
    assert (examples.multiple, examples.context) == (multiple, 300)


@pytest.mark.parametrize("has_end_token", [True, False])
def test_tokenizer_without_an_end_token_is_stated(file, has_end_token):
    tokenizer = ByteTokenizer()
    tokenizer.end_text = "\0" if has_end_token else ""
    path = file({"text": "abc"})
    _, notices = load_examples(TextFiles(path=path), tokenizer, 16)
    assert [notice.kind for notice in notices] == ([] if has_end_token else ["no_end_token"])


class TestTargets:
    def test_text_trains_every_token_and_the_end_token(self, file):
        inputs, labels = batch(rows(file({"text": "abc"}), packing=False))
        assert inputs == [[97, 98, 99]]
        assert labels == [[98, 99, 0]]

    def test_completion_trains_only_the_answer(self, file):
        inputs, labels = batch(rows(file({"prompt": "ab", "completion": "cd"}), packing=False))
        assert inputs == [[97, 98, 99, 100]]
        assert labels == [[IGNORED_LABEL, 99, 100, 0]]

    def test_short_rows_are_padded_with_ignored_labels(self, file):
        inputs, labels = batch(rows(file({"text": "a"}, {"text": "abc"}), packing=False))
        assert inputs == [[97, 0, 0], [97, 98, 99]]
        assert labels[0] == [0, IGNORED_LABEL, IGNORED_LABEL]

    def test_a_long_text_continues_in_a_row_and_a_token_is_a_target_once(self, file):
        result = rows(file({"text": "abcdefgh"}), length=4, packing=False)
        _, labels = batch(result)
        assert [label for row in labels for label in row if label != IGNORED_LABEL] == [*b"bcdefgh", 0]

    def test_a_long_completion_is_cut_and_one_without_an_answer_left_out(self, file):
        result = rows(
            file({"prompt": "ab", "completion": "cdefgh"}, {"prompt": "abcdefgh", "completion": "x"}), length=4
        )
        assert [segment.tokens.tolist() for row in range(len(result)) for segment in result.segments(row)] == [
            [*b"abcd"]
        ]
        assert result.weights.tolist() == [2]


class TestPacking:
    def test_examples_share_a_row_and_count_positions_of_their_own(self, file):
        built = rows(file({"text": "ab"}, {"text": "c"}, {"text": "def"}), length=8)
        inputs, labels, positions, ends = batch(built, True)
        assert inputs[0][:4] == [97, 98, 0, 99]
        assert labels[0][:4] == [98, 0, IGNORED_LABEL, 0]
        assert positions[0][:4] == [0, 1, 2, 0]
        # The last token of a row is no input, and rows with fewer examples repeat the last end.
        assert ends == [[3, 4, 4], [3, 4, 4]]

    def test_each_segment_goes_to_the_first_row_with_room(self):
        assert list(pack_sizes([5, 4, 3, 4, 2], 8)) == [[0, 2], [1, 3], [4]]

    def test_number_of_open_rows_is_limited(self):
        packed = list(pack_sizes([6] * (OPEN_ROWS + 1) + [2], 8))
        assert [len(row) for row in packed[:3]] == [1, 2, 1]

    def test_the_weight_is_that_of_the_unpacked_examples(self, file):
        path = file(*({"prompt": f"{n}", "completion": "x" * (n % 5 + 1)} for n in range(20)))
        assert rows(path).weights.sum() == rows(path, packing=False).weights.sum() == sum(n % 5 + 2 for n in range(20))

    def test_the_loss_of_a_packed_row_is_that_of_its_examples_apart(self, file):
        path = file(*({"text": word} for word in ("def", "class x", "import", "return y", "if z")))
        losses = []
        for packing in (True, False):
            torch.manual_seed(0)
            task = build_builtin_on_text(
                GptModel(layers=2, width=16, heads=2, context=24), TextFiles(path=path, packing=packing)
            )
            model, indices = task.build_model(), np.arange(task.examples.train)
            losses.append((task.loss_sum(model, task.examples.train_batch(indices, CPU)).item(), task.weight(indices)))
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        assert build_builtin_on_text(GptModel(context=24, heads=2), TextFiles(path=path)).examples.train < 5


class TestEvaluation:
    def test_evaluation_examples_follow_the_training_examples(self, tmp_path):
        train, held_out = tmp_path / "a", tmp_path / "b"
        train.write_text('{"text": "abc"}\n' * 3)
        held_out.write_text('{"text": "z"}\n')
        data = TextFiles(path=str(train), eval_path=str(held_out), packing=False)
        task = build_builtin_on_text(GptModel(width=16, heads=2, context=8), data)
        assert (task.examples.train, task.examples.held_out) == (3, 1)
        inputs, labels, targets = task.examples.held_out_batch(np.array([0]), CPU)
        assert len(targets) == 1
        assert (inputs.tolist(), labels.tolist()) == ([[ord("z")]], [[0]])
        assert task.weight(np.array([3])) == 1.0

    def test_sets_follow_in_their_order(self, tmp_path):
        for name, count in (("train", 3), ("b", 2), ("a", 1)):
            (tmp_path / name).write_text((json.dumps({"text": f"{name}{name}"}) + "\n") * count)
        sets = {"b": str(tmp_path / "b"), "a": str(tmp_path / "a")}
        data = TextFiles(path=str(tmp_path / "train"), eval_sets=sets, packing=False)
        examples = build_builtin_on_text(GptModel(width=16, heads=2, context=16), data).examples
        assert (examples.train, examples.held_out, examples.held_out_sets) == (3, 3, {"b": 2, "a": 1})
        inputs, *_ = examples.held_out_batch(np.arange(3), CPU)
        assert inputs[:, 0].tolist() == [ord("b"), ord("b"), ord("a")]
        chosen = held_out_sets(examples, None)
        assert {name: indices.tolist() for name, indices in chosen.items()} == {"b": [0, 1], "a": [2]}


class TestInvalidFiles:
    @pytest.mark.parametrize(
        ("line", "format", "message"),
        [
            (
                "{",
                "text",
                ", line 2 is not JSON: Expecting property name enclosed in double quotes at character 2: "
                "expected one JSON object with `text`, a string",
            ),
            (
                '{"text": 1}',
                "auto",
                ", line 2 does not have format `text`: expected one JSON object with `text`, a string",
            ),
            ("[1]", "text", ", line 2 does not have format `text`: expected one JSON object with `text`, a string"),
        ],
    )
    def test_a_broken_line_is_named(self, file, line, format, message):
        assert refusal(file({"text": "a"}, line), format=format) == message

    def test_a_line_of_no_known_format_lists_all_formats(self, file):
        message = refusal(file({"question": "a"}))
        assert message.startswith(", line 1 has none of the known formats")
        assert all(word in message for word in ("`text`", "`prompt` and `completion`", "`messages`"))

    @pytest.mark.parametrize(
        "line",
        [
            r'{"text": "a \ud83d b"}',
            r'{"prompt": "a", "completion": "\ude00"}',
        ],
    )
    def test_half_of_a_surrogate_pair_is_named_by_its_line(self, file, line):
        good = r'{"text": "\ud83d\ude00"}' if '"text"' in line else line.replace(r"\ud800", "a").replace(r"\ude00", "a")
        assert refusal(file(good, line)).startswith(", line 2 has half of a surrogate pair")

    def test_error_does_not_quote_the_file(self, file):
        assert "secret" not in refusal(file("secret"))

    def test_conversations_need_a_template(self, file):
        line = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        assert ", line 1: a built-in model has no chat template" in refusal(file(line))

    def test_an_empty_file(self, file):
        with pytest.raises(RefusedError, match=r"holds no example$"):
            rows(file())

    def test_missing_file(self, tmp_path):
        with pytest.raises(RefusedError, match="cannot be read: No such file or directory"):
            rows(str(tmp_path / "none"))

    def test_row_longer_than_the_context(self):
        with pytest.raises(RefusedError, match=r"data.max_length is 65, longer than the model.s context of 64 tokens"):
            row_length(65, 64)

    @pytest.mark.parametrize(("requested", "context", "expected"), [(None, 64, 64), (None, 10**6, 2048), (64, 64, 64)])
    def test_the_default_length_is_the_models_context(self, requested, context, expected):
        assert row_length(requested, context) == expected
