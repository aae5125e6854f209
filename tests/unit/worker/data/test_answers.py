"""Rows of answers: which tokens are targets, which pairs are left out, and which answers are compared."""

import numpy as np
import pytest
import torch

from worker.data.answers import Answer, answer_examples, are_equal, labelled_rows, pair_rows
from worker.data.examples import IGNORED_LABEL

CPU = torch.device("cpu")


def answer(prompt, text):
    return Answer(np.frombuffer(prompt.encode(), np.uint8).astype(np.int32), np.frombuffer(text.encode(), np.uint8))


def texts(rows):
    starts = [0, *rows.rows.ends[:-1]]
    return [bytes(rows.rows.tokens[a:b].tolist()).decode() for a, b in zip(starts, rows.rows.ends, strict=True)]


class TestPairs:
    def test_targets_are_the_answers(self):
        rows = pair_rows([(answer("ab", "cd"), answer("ab", "e"))], 10)
        assert texts(rows) == ["abcd", "abe"]
        assert rows.rows.targets.tolist() == [False, False, True, True, False, False, True]

    def test_long_answers_are_cut_and_pairs_without_a_target_are_left_out(self):
        rows = pair_rows([(answer("ab", "cdef"), answer("ab", "g")), (answer("abcd", "e"), answer("abcd", "f"))], 4)
        assert texts(rows) == ["abcd", "abg"]

    def test_answers_are_equal_within_a_length(self):
        assert are_equal(answer("ab", "cde"), answer("ab", "cdf"), 4)
        assert not are_equal(answer("ab", "cde"), answer("ab", "cdf"), 5)
        assert not are_equal(answer("ab", "cd"), answer("abc", "d"), 4), "the prompts differ"

    def test_without_a_prompt_the_first_token_is_no_target(self):
        rows = pair_rows([(answer("", "abc"), answer("", "xy"))], 4)
        assert rows.rows.targets.tolist() == [False, True, True, False, True]

    def test_batch_has_all_chosen_answers_before_all_rejected_ones(self):
        rows = pair_rows([(answer("a", "bc"), answer("a", "d")), (answer("e", "f"), answer("e", "ghi"))], 9)
        examples = answer_examples([rows], {}, paired=True)
        examples.reference[:] = [[1, 2], [3, 4]]
        tokens, labels, reference = examples.train_batch(np.array([1, 0]), CPU)
        assert [bytes(row[row > 0].tolist()) for row in tokens] == [b"e", b"ab", b"egh", b"a"]
        assert [[label for label in row if label != IGNORED_LABEL] for row in labels.tolist()] == [
            [ord("f")],
            [ord("b"), ord("c")],
            [ord("g"), ord("h"), ord("i")],
            [ord("d")],
        ]
        assert reference.tolist() == [[3, 4], [1, 2]]


class TestLabels:
    def examples(self, answers, length=10, **held_out):
        rows = labelled_rows(answers, [True] * len(answers), length)
        sets = {name: labelled_rows(some, [False, True, True][: len(some)], length) for name, some in held_out.items()}
        return answer_examples([rows], sets, paired=False, length=length)

    def others(self, examples, *numbers):
        """Return the texts with which a global batch is compared."""
        pairs = examples.others.pairs_in(np.array(numbers))
        texts = [examples.others.of_pair(pair) for pair in pairs.tolist()]
        return [bytes([*prompt, *text]).decode() for prompt, text in texts]

    def test_answers_of_the_batch_are_rolled_by_one(self):
        examples = self.examples([answer(prompt, text) for prompt, text in zip("abcde", "12345", strict=True)])
        assert self.others(examples, 3, 0, 4) == ["d5", "a4", "e1"]
        assert self.others(examples, 1, 2) == ["b3", "c2"]
        assert self.others(examples, 2) == ["c3"], "alone in its batch"

    def test_other_answer_is_the_last_before_to_another_prompt(self):
        answers = [answer("p", "1"), answer("p", "2"), answer("q", "3"), answer("r", "4"), answer("p", "5")]
        assert self.others(self.examples(answers), *range(5)) == ["p4", "p4", "q2", "r3", "p4"]

    def test_of_a_single_prompt_the_answers_are_those_of_the_neighbours(self):
        examples = self.examples([answer("p", "1"), answer("p", "2"), answer("p", "3")])
        assert self.others(examples, 0, 1, 2) == ["p3", "p1", "p2"]

    def test_pairs_are_those_of_a_search(self):
        rng = np.random.RandomState(3)
        for _ in range(200):
            examples = self.examples([answer(prompt, "x") for prompt in rng.choice(list("abc"), 6)])
            prompts = [examples.others.prompts.text(number).tolist() for number in range(6)]
            batch = rng.randint(0, 6, rng.randint(1, 9))
            expected = []
            for position, example in enumerate(batch):
                before = np.roll(batch[::-1], position - len(batch))
                others = [other for other in before if prompts[other] != prompts[example]] or [batch[position - 1]]
                expected.append((example, others[0]))
            assert [divmod(pair, 6) for pair in examples.others.pairs_in(batch).tolist()] == expected

    def test_every_pair_of_all_batches_is_listed_once(self):
        examples = self.examples([answer(prompt, prompt) for prompt in "abc"])
        batches = [np.array([0, 1]), np.array([2, 0]), np.array([1, 0])]
        listed = [examples.others.of_pair(pair) for pair in examples.compared(batches).tolist()]
        assert [bytes([*prompt, *text]) for prompt, text in listed] == [b"ab", b"ac", b"ba", b"ca"]

    def test_other_answer_is_cut_after_its_prompt(self):
        examples = self.examples([answer("ppp", "1"), answer("q", "23456")], length=5)
        pairs = examples.others.pairs_in(np.array([0, 1]))
        examples.other_reference.pairs, examples.other_reference.values = np.sort(pairs), np.float32([-1, -2])
        tokens, labels, reference = examples.other_batch(pairs, CPU)
        assert [bytes(row[row > 0].tolist()) for row in tokens] == [b"ppp2", b"q"]
        assert [[label for label in row if label != IGNORED_LABEL] for row in labels.tolist()] == [
            [ord("2"), ord("3")],
            [ord("1")],
        ]
        assert reference.tolist() == [-1, -2]
        assert examples.lengths(pairs).tolist() == [4, 5, 5, 2]

    def test_answer_that_the_reference_has_not_read_is_a_fault(self):
        examples = self.examples([answer("p", "1"), answer("q", "2")])
        with pytest.raises(AssertionError, match="has not read"):
            examples.other_batch(examples.others.pairs_in(np.array([0, 1])), CPU)

    def test_without_a_prompt_another_answer_follows_nothing(self):
        examples = self.examples([answer("", "123"), answer("q", "45")])
        assert self.others(examples, 0, 1) == ["45", "q123"]

    def test_held_out_sets_follow_the_training_examples(self):
        examples = self.examples(
            [answer("p", "1"), answer("q", "2")], new=[answer("r", "33"), answer("s", "4"), answer("t", "5")]
        )
        assert (examples.train, examples.held_out, examples.held_out_sets) == (2, 3, {"new": 3})
        tokens, labels, *_, desirable = examples.held_out_batch(np.array([0, 1]), CPU)
        assert tokens.tolist() == [[ord("r"), ord("3")], [ord("s"), 0]]
        assert labels.tolist() == [[ord("3"), ord("3")], [ord("4"), IGNORED_LABEL]]
        assert desirable.tolist() == [False, True]
        assert self.others(examples, 2, 3, 4) == ["r5", "s33", "t4"]

    def test_longest_examples_are_known(self):
        examples = self.examples([answer("p", "1"), answer("q", "22222"), answer("rr", "3")])
        assert examples.largest(1).tolist() == [1]
        assert examples.token_counts.tokens.tolist() == [1, 5, 2]
