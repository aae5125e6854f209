"""The tensors of an export."""

from torch import nn

from worker.export.weights import whole_weights


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", self.embedding.weight.detach()[0].clone())


def test_a_tied_weight_has_one_name_and_buffers_are_there():
    assert sorted(whole_weights(Tied())) == ["embedding.weight", "scale"]
