"""Arrays are cut into the items that `json.loads` reads, whatever the parts are in which their bytes arrive."""

import json
import random
from itertools import cycle

import pytest

from trainyard.contract.formats.json_arrays import ArrayDetector, ArrayItems

LIMIT = 10_000
STRUCTURE = 'ab"\\[]{},\n\té\u2028🙂'


def parts_of(content, sizes):
    position = 0
    for size in cycle(sizes):
        if position >= len(content):
            return
        yield content[position : position + size]
        position += size


def read(content, sizes=(LIMIT,)):
    """Return the items of a file, None for each that cannot be read; None for a file with lines."""
    detector, reader, items = ArrayDetector(LIMIT), ArrayItems(LIMIT, "is too long"), []
    for part in parts_of(content, sizes):
        if detector.is_array:
            items += reader.feed(part)
            continue
        detector.feed(part)
        if detector.is_array:
            items += reader.feed(bytes(detector.head[detector.start :]))
    if detector.is_array is None:
        detector.finish()
        items += reader.feed(bytes(detector.head[detector.start :])) if detector.is_array else []
    return [value(item) for item in [*items, *reader.finish()]] if detector.is_array else None


def value(item):
    try:
        return None if item.problem else json.loads(item.raw.decode())
    except ValueError:
        return None


def loaded(content):
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except ValueError:
        return None
    return document if isinstance(document, list) else None


def made_value(rnd, depth=0):
    def text():
        return "".join(rnd.choice(STRUCTURE) for _ in range(rnd.randrange(9)))

    match rnd.randrange(6 if depth < 3 else 3):
        case 0:
            return rnd.choice([True, 7, -1.5])
        case 1 | 2:
            return text()
        case 3 | 4:
            return {text(): made_value(rnd, depth + 1) for _ in range(rnd.randrange(3))}
    return [made_value(rnd, depth + 1) for _ in range(rnd.randrange(3))]


def made_document(rnd):
    items = [made_value(rnd) for _ in range(rnd.randrange(5))]
    text = json.dumps(items, indent=rnd.choice([None, 1]), ensure_ascii=rnd.random() < 0.5)
    text = text.replace("\n", rnd.choice(["\n", "\r\n"])) + rnd.choice(["", "\n", "\r\n \n"])
    return rnd.choice([b"", b"\xef\xbb\xbf"]) + text.encode()


def damaged(rnd, content):
    changed = bytearray(content)
    for _ in range(rnd.randrange(1, 4)):
        position = rnd.randrange(len(changed) + 1)
        match rnd.randrange(3):
            case 0:
                del changed[position : position + 1]
            case 1:
                changed.insert(position, rnd.choice(b'[]{},:"\\\n 1x'))
            case 2:
                del changed[rnd.randrange(position // 2, position + 1) :]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(10))
def test_items_are_those_of_json_loads_and_damage_is_noticed(seed):
    rnd = random.Random(seed)
    for number in range(200):
        content = made_document(rnd)
        content = damaged(rnd, content) if number % 2 else content
        expected, items = loaded(content), read(content, [rnd.choice([1, 2, 5, 40]) for _ in range(9)])
        if expected is None:
            assert items is None or None in items, content
        else:
            assert items == expected, content


@pytest.mark.parametrize(
    ("content", "is_array"),
    [
        (b"[]", True),
        (b'\xef\xbb\xbf \r\n [{"a": 1}]\r\n\r\n', True),
        (b"[1,2]", True),
        (b'[1,2]\n{"text": "a"}', False),
        (b"[1,2]\n[3,4]\n", False),
        (b"[1][2]", False),
        (b"[1,\n2]\n[3]", True),
        (b"[\n", True),
        (b"[1, 2", True),
        (b'{"a": [1]}', False),
        (b"", False),
        (b" \n", False),
        (b"\xef\xbb\xbf", False),
        (b"\xef", False),
        (b'\xff\xfe[\0"', False),
        (b'["]\n"]', True),
    ],
)
def test_whole_list_in_the_first_line_is_an_array_if_nothing_follows(content, is_array):
    for sizes in ([1], [3], [LIMIT]):
        detector = ArrayDetector(LIMIT)
        for part in parts_of(content, sizes):
            if detector.is_array is None:
                detector.feed(part)
        detector.finish()
        assert bool(detector.is_array) == is_array


def test_first_line_above_the_limit_is_decided():
    detector = ArrayDetector(100)
    detector.feed(b"[" + b"1," * 60)
    assert detector.is_array
    detector = ArrayDetector(100)
    detector.feed(b" " * 101)
    assert detector.is_array is False


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (b"[1, ]", ["is missing: the array has a comma without an item"]),
        (b"[,1]", ["is missing: the array has a comma without an item"]),
        (b"[1,\n 2", ["is the end of the file, and the array has no `]`"]),
        (b"[1,\n", ["is the end of the file, and the array has no `]`"]),
        (b"[1]\n[2]", ["comes after the `]` that ends the array"]),
        (b"[" + b"1" * 50 + b",2]", ["is too long"]),
        (b"[ ]", []),
        (b"[1]" + b" " * 50, []),
        (b"[1]" + b" " * 50 + b"2" + b" " * 50, ["comes after the `]` that ends the array"]),
    ],
)
def test_problems_of_arrays_are_stated(content, problems):
    reader = ArrayItems(40, "is too long")
    items = [*reader.feed(content[1:]), *reader.finish()]
    assert [item.problem for item in items if item.problem] == problems


def test_one_item_at_most_is_in_memory():
    reader = ArrayItems(1000, "is too long")
    for _ in range(50):
        assert [len(item.raw) for item in reader.feed(b" " * 100 + b"1" * 500 + b",")] == [500]
        assert reader.unfinished == 0
    list(reader.feed(b"2" * 5000))
    assert reader.is_too_long
    assert len(reader._item) == 0


def test_item_that_is_fed_again_is_read_once():
    reader = ArrayItems(1000, "is too long")
    assert list(reader.feed(b'{"a": [1, "]')) == []
    size = reader.unfinished
    reader.restart()
    assert size == 12
    assert [item.raw for item in reader.feed(b'{"a": [1, "],"]} ,2]')] == [b'{"a": [1, "],"]}', b"2"]
