"""Rows of answers: which tokens are targets, which pairs are left out, and which answer is to another prompt."""

import numpy as np
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
    def test_other_answer_is_the_last_before_to_another_prompt(self):
        answers = [answer("p", "1"), answer("p", "2"), answer("q", "3"), answer("r", "4"), answer("p", "5")]
        rows = labelled_rows(answers, [True, False, True, False, True], 10)
        assert texts(rows)[::2] == ["p1", "p2", "q3", "r4", "p5"]
        assert texts(rows)[1::2] == ["p4", "p4", "q2", "r3", "p4"]

    def test_of_a_single_prompt_the_answers_are_those_of_the_neighbours(self):
        rows = labelled_rows([answer("p", "1"), answer("p", "2")], [True, False], 10)
        assert texts(rows)[1::2] == ["p2", "p1"]

    def test_held_out_sets_follow_the_training_examples(self):
        one = labelled_rows([answer("p", "1"), answer("q", "2")], [True, False], 10)
        other = labelled_rows([answer("r", "33"), answer("s", "4"), answer("t", "5")], [False, True, True], 10)
        examples = answer_examples([one], {"new": other}, paired=False)
        assert (examples.train, examples.held_out, examples.held_out_sets) == (2, 3, {"new": 3})
        tokens, labels, *_, desirable = examples.held_out_batch(np.array([0, 1]), CPU)
        assert tokens.tolist() == [[ord("r"), ord("3")], [ord("s"), 0]]
        assert labels.tolist() == [[ord("3"), ord("3")], [ord("4"), IGNORED_LABEL]]
        assert desirable.tolist() == [False, True]

    def test_longest_examples_are_known(self):
        rows = labelled_rows([answer("p", "1"), answer("q", "22222"), answer("rr", "3")], [True] * 3, 10)
        examples = answer_examples([rows], {}, paired=False)
        assert examples.largest(1).tolist() == [2]  # Its other answer is the long one.
        assert examples.token_counts.tokens.tolist() == [1, 5, 2]
