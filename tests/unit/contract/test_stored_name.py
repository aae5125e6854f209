"""Names of programs: printable ones are stored as they are, and distinct ones apart."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.contract.stored_name import MAX_STORED_NAME, SYSTEM_PREFIXES, metric_name, stored_name, with_digest

_ANY = st.one_of(st.text(alphabet=st.characters(exclude_categories=[]), max_size=300), st.text(min_size=240))


@given(st.lists(_ANY, unique=True, max_size=20))
@example(["", "_", "~e3b0", "\0", "\ufffd", "\ud83d\ude00", "😀", "e\u0301", "é", "É", "\n", r"\n"])
@example(["x" * 250, "x" * 251, "x" * 252, " x", "x", "x ", "\u200bx", "x\u200b", "\ue000", "\uffff", "\ufdd0"])
@example(["system/node-0/cpu", "program/system/node-0/cpu", "system/node-0/cpu\n", "system/nodes"])
def test_distinct_names_stay_distinct_printable_and_short(names: list[str]) -> None:
    for stored in (list(map(stored_name, names)), list(map(metric_name, names))):
        assert len(set(stored)) == len(names)
        assert all(one.isprintable() and 0 < len(one) <= MAX_STORED_NAME for one in stored)
        assert list(map(stored_name, stored)) == stored


@pytest.mark.parametrize("name", ["λ", "acc@1", "a,b", "準確率", "😀", "a\\b", " x ", "x" * 250, "System/node-0/x"])
def test_a_printable_name_is_stored_as_it_is(name: str) -> None:
    assert (stored_name(name), metric_name(name)) == (name, name)


def test_other_names_have_escapes_and_a_digest() -> None:
    assert stored_name("a\nb") == r"a\nb~7e18f737311b2dc3"
    assert stored_name("x" * 251) == with_digest("x" * 233, "x" * 251)
    assert metric_name("system/rank-1/x").startswith("program/system/rank-1/x~")
    assert not metric_name("system/node-" + "\n" * 300).startswith(SYSTEM_PREFIXES)
