"""Messages that TensorBoard's own library made, and messages that are none."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event as RealEvent
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.util.tensor_util import make_tensor_proto
from torch.utils.tensorboard import summary

from worker.trackers.event_messages import Event, EventHistogram, decode_event
from worker.trackers.wire_format import MalformedMessageError

PNG = b"\x89PNG\r\n\x1a\n..."


def decode(*values: Any, step: int = 7) -> Event:
    parts = [one for value in values for one in (value.value if isinstance(value, Summary) else [value])]
    return decode_event(RealEvent(wall_time=12.5, step=step, summary=Summary(value=parts)).SerializeToString(), {})


def tensor_value(plugin: str, tensor: TensorProto) -> Any:
    value = Summary.Value(tag="t", tensor=tensor)
    value.metadata.plugin_data.plugin_name = plugin
    return value


def test_scalar_of_torch() -> None:
    event = decode(summary.scalar("train/loss", 0.25))
    assert (event.time, event.step, event.scalars) == (12.5, 7, [("train/loss", 0.25)])


def test_negative_step_is_signed() -> None:
    assert decode(summary.scalar("loss", 1.0), step=-3).step == -3


@pytest.mark.parametrize("options", [{"new_style": True}, {"double_precision": True}])
def test_scalar_of_torch_as_a_tensor(options: dict[str, bool]) -> None:
    assert decode(summary.scalar("loss", 0.25, **options)).scalars == [("loss", 0.25)]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32", "int64"])
def test_scalar_of_tensorflow(kind: str) -> None:
    import numpy

    number = -3 if kind.startswith("int") else -0.5
    value = numpy.array(number, kind)
    content = TensorProto(dtype=make_tensor_proto(value).dtype, tensor_content=value.tobytes())
    for tensor in (make_tensor_proto(value), content):
        if not (kind == "float16" and tensor is content):
            assert decode(tensor_value("scalars", tensor)).scalars == [("t", number)]


def test_plugin_is_remembered_from_the_first_value_of_a_tag() -> None:
    plugins: dict[str, str] = {}
    value = tensor_value("scalars", TensorProto(dtype="DT_FLOAT", float_val=[0.5]))
    decode_event(RealEvent(summary=Summary(value=[value])).SerializeToString(), plugins)
    value.ClearField("metadata")
    later = decode_event(RealEvent(summary=Summary(value=[value])).SerializeToString(), plugins)
    assert later.scalars == [("t", 0.5)]


def test_images_and_texts_are_artifacts() -> None:
    image = Summary.Value(tag="image", image=Summary.Image(height=1, width=1, encoded_image_string=PNG))
    images = tensor_value("images", TensorProto(dtype="DT_STRING", string_val=[b"1", b"1", PNG, PNG]))
    artifacts = decode(image, images, summary.text("note", "some *text*")).artifacts
    assert [(one.tag, one.extension, one.data, one.position) for one in artifacts] == [
        ("image", ".png", PNG, None),
        ("t", ".png", PNG, 0),
        ("t", ".png", PNG, 1),
        ("note", ".txt", b"some *text*", None),
    ]


def test_hyperparameters_are_parameters() -> None:
    values = {"lr": 3e-4, "model": "gpt", "amp": True}
    assert decode(hparams_pb(values)).parameters == values
    _, start, _ = summary.hparams(values, {"loss": 0.0})
    assert decode(start).parameters == values


def test_histograms_have_the_edges_of_numpy() -> None:
    import numpy

    values = numpy.random.default_rng(0).normal(size=100)
    counts, edges = numpy.histogram(values, bins=5)
    rows = numpy.stack([edges[:-1], edges[1:], counts], axis=1)
    tensor = TensorProto(dtype="DT_DOUBLE", tensor_content=rows.tobytes())
    expected = [pytest.approx(list(edges)), pytest.approx(list(counts))]
    for value in (summary.histogram("t", values, bins=5), tensor_value("histograms", tensor)):
        (histogram,) = decode(value).histograms
        assert [histogram.edges, histogram.counts] == expected


def test_histograms_without_a_meaning_are_left_out() -> None:
    def event(limits: list[float], counts: list[float]) -> Event:
        histogram = HistogramProto(min=0.0, bucket_limit=limits, bucket=counts)
        return decode(Summary.Value(tag="h", histo=histogram))

    assert event([1.0, 2.0], [3.0, 4.0]).histograms == [EventHistogram("h", [0.0, 1.0, 2.0], [3.0, 4.0])]
    for limits, counts in ([], []), ([1.0], [1.0, 2.0]), ([2.0, 1.0], [1.0, 1.0]), ([1.0], [math.nan]):
        assert event(limits, counts).histograms == []


def test_other_plugins_are_left_out() -> None:
    event = decode(tensor_value("pr_curves", TensorProto(dtype="DT_FLOAT", float_val=[0.5])))
    assert event == Event(time=event.time, step=event.step)


@given(message=st.binary(max_size=200))
def test_any_bytes_are_an_event_or_malformed(message: bytes) -> None:
    try:
        decode_event(message, {})
    except MalformedMessageError:
        return


def test_damaged_message_is_an_event_or_malformed() -> None:
    chance = random.Random(0)
    value = tensor_value("scalars", TensorProto(dtype="DT_INT64", int64_val=[5]))
    good = RealEvent(wall_time=1.0, step=1, summary=Summary(value=[value, *hparams_pb({"a": 1.0}).value]))
    content = good.SerializeToString()
    for _ in range(2000):
        damaged = bytearray(content[: chance.randint(1, len(content))])
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            decode_event(bytes(damaged), {})
        except MalformedMessageError:
            continue


def test_tags_that_are_no_utf_8_stay_distinct() -> None:
    def message(tag: bytes) -> bytes:
        value = b"\x0a" + bytes([len(tag)]) + tag + b"\x15\x00\x00\x80\x3f"
        summary = b"\x0a" + bytes([len(value)]) + value
        return b"\x2a" + bytes([len(summary)]) + summary

    tags = [decode_event(message(tag), {}).scalars for tag in (b"\xff", b"\xfe", "\ufffd".encode(), "λ".encode())]
    assert len({tag for ((tag, _),) in tags}) == 4
    assert tags[3] == [("λ", 1.0)]
