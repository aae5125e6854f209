"""The statements that one request sends to the database."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine


@contextmanager
def statements_of_request(part: str) -> Iterator[list[str]]:
    """Yield a list that has, after the block, the statements of the thread that sent one with this part.

    Other threads of this process, such as the one that writes the audit log, may write at any time.
    """
    by_thread: dict[int, list[str]] = defaultdict(list)
    of_request: list[str] = []

    def add(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        by_thread[threading.get_ident()].append(statement)

    event.listen(Engine, "before_cursor_execute", add)
    try:
        yield of_request
    finally:
        event.remove(Engine, "before_cursor_execute", add)
    (statements,) = (one for one in by_thread.values() if any(part in text for text in one))
    of_request += statements
