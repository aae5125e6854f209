"""`auto` becomes a value by the rules that docs/openai.md states."""

import pytest

from service.plugins.openai.hyperparameters import choose_batch_size, choose_epochs


@pytest.mark.parametrize(
    ("examples", "epochs"),
    [(1, 25), (4, 25), (10, 10), (33, 4), (34, 3), (1000, 3), (8333, 3), (8334, 2), (12_501, 1), (10**6, 1)],
)
def test_automatic_epochs_depend_on_the_number_of_examples(examples: int, epochs: int) -> None:
    assert choose_epochs("auto", examples) == choose_epochs(None, examples) == epochs
    assert choose_epochs(7, examples) == 7


@pytest.mark.parametrize(
    ("examples", "gpus", "size"),
    [(1, 1, 1), (100, 4, 4), (1000, 1, 2), (50_000, 8, 100), (10**6, 8, 256), (10, 512, 512)],
)
def test_automatic_batch_size_is_a_share_of_the_examples(examples: int, gpus: int, size: int) -> None:
    assert choose_batch_size("auto", examples, gpus) == size
    assert choose_batch_size(3, examples, gpus) == 3
