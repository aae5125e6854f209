"""Hook of the launcher in a user's program: Python runs a copy of this file as `sitecustomize` at its start.

It records the exception that ends a rank, lets SIGTERM end workers, and writes the rest of event files. The program's
Python may be older and without our packages, so the file needs the standard library alone. The record is the error file
of torchrun, in the form of `@record`, with more in `trainyard`.
"""

from __future__ import annotations

import _thread
import atexit
import json
import os
import sys
import time
import traceback
from typing import Any

RECORD = "TRAINYARD_RECORD_EXCEPTION"
"""The variable that marks a rank's process. Processes that a rank starts do not have it."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_CHILDREN = (b"--multiprocessing-fork", b"from multiprocess")
"""Parts of the command of a process that `multiprocessing`, or the package `multiprocess`, has started."""
_EVENT_FILES = "tensorboard.summary.writer.event_file_writer"
_FLUSH_SECONDS = 5
"""Seconds to flush writers. A writer whose disk does not answer must not delay the program's end further."""
_MAX_TEXT = 60_000
_MAX_PARTS = 20
_HAS_VARARGS = 0x04
_SIGACTION_BYTES = 256
"""More than the C structure, whose first member is the handler. Zeros are no flags and an empty mask."""
_MAX_STREAMS = 10
"""Streams that a text for stderr passes through, at most."""


def install() -> None:
    """Record the exception that ends this process, if it is a rank."""
    if os.environ.pop(RECORD, None) and os.environ.get(ERROR_FILE):
        state = {"pid": os.getpid(), "exit": None, "coded": False}
        _remember_exits(state)
        # The function that is registered first runs last.
        atexit.register(_record, os.environ[ERROR_FILE], state)


def let_children_end() -> None:
    """Let SIGTERM end the processes that the program starts, as its pools of workers do.

    A rank ignores the signal until the program handles it, and every child would inherit that: the end of
    `with multiprocessing.Pool()` would wait forever. It still does for a worker that has not begun to run Python then.
    """
    import signal

    def end_by_signal() -> None:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=end_by_signal)
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read()
    if any(mark in command for mark in _CHILDREN):
        end_by_signal()


def let_programs_end() -> None:
    """Let SIGTERM end the programs that the program starts: `Popen.terminate` would have no effect, and `wait` would
    wait forever. A handler, unlike the ignored signal, becomes the default effect in the program that is started.
    """
    import _posixsubprocess

    lock = _thread.RLock()
    starters = [(_posixsubprocess, "fork_exec"), (os, "posix_spawn"), (os, "posix_spawnp")]
    if "subprocess" in sys.modules:
        starters.append((sys.modules["subprocess"], "_fork_exec"))
    for module, name in starters:
        if hasattr(module, name):
            setattr(module, name, _with_default_sigterm(getattr(module, name), lock))


def _with_default_sigterm(start: Any, lock: Any) -> Any:
    """Return a function that starts a program like `start`, with the default effect of SIGTERM if it is ignored here.

    Args:
        lock: Held while the handler is set, which all threads share.
    """
    import signal

    def start_program(*arguments: Any, **named: Any) -> Any:
        if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
            return start(*arguments, **named)
        with lock:
            restore = _handle_without_effect(signal.SIGTERM)
            try:
                return start(*arguments, **named)
            finally:
                restore()

    return start_program


def _handle_without_effect(number: int) -> Any:
    """Handle a signal in a function of C, from any thread, and return the function that restores what was before."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        before, handled = ctypes.create_string_buffer(_SIGACTION_BYTES), ctypes.create_string_buffer(_SIGACTION_BYTES)
        ctypes.c_void_p.from_buffer(handled).value = ctypes.cast(libc.abs, ctypes.c_void_p).value
        libc.sigaction(number, handled, before)
    except (ImportError, OSError, AttributeError):
        return int
    return lambda: libc.sigaction(number, before, None)


def write_event_files() -> None:
    """Flush TensorBoard's writers when the process ends. They have no exit handler of their own."""
    atexit.register(_flush_writers, os.getpid())


def _flush_writers(pid: int) -> None:
    module = sys.modules.get(_EVENT_FILES)
    if module is None or os.getpid() != pid:
        return
    import gc
    import signal

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_FLUSH_SECONDS)
    try:
        # `isinstance` would run code of proxies.
        for writer in [one for one in gc.get_objects() if issubclass(type(one), module.EventFileWriter)]:
            try:
                writer.flush()
            except (OSError, ValueError, RuntimeError) as error:
                if isinstance(error, TimeoutError):
                    return
    finally:
        signal.alarm(0)


def import_hidden(name: str, folder: str) -> None:
    """Import the module that a module of the same name in the folder hides."""
    import importlib.machinery
    import importlib.util

    others = [path for path in sys.path if os.path.abspath(path or ".") != os.path.abspath(folder)]
    spec = importlib.machinery.PathFinder.find_spec(name, others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def describe(error: BaseException) -> dict[str, Any]:
    """Return an exception as data: its type and the names of its bases, message, notes, causes and parts of a group."""
    causes: list[dict[str, Any]] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < _MAX_PARTS:
        causes.append(_named(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return dict(
        _named(error),
        notes=[_text(note) for note in getattr(error, "__notes__", ())][:_MAX_PARTS],
        causes=causes[1:],
        parts=[describe(part) for part in getattr(error, "exceptions", ())[:_MAX_PARTS]],
    )


def _named(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    return {
        "type": kind.__name__
        if kind.__module__ in ("builtins", "__main__")
        else kind.__module__ + "." + kind.__qualname__,
        "bases": [base.__name__ for base in kind.__mro__ if issubclass(base, BaseException)],
        "message": _text(error),
    }


def _text(value: object) -> str:
    try:
        return str(value)[:_MAX_TEXT]
    except Exception:
        return "<its text cannot be made>"


def _remember_exits(state: dict[str, Any]) -> None:
    """Remember the text of `sys.exit(text)` and `raise SystemExit(text)`, which Python only prints.

    Python prints the text when no code of the program runs any more.
    """
    leave, stream, thread = sys.exit, sys.stderr, _thread.get_ident()

    def exit(status: Any = None) -> None:
        state["coded"] = status is None or isinstance(status, int)
        state["exit"] = None if state["coded"] else _text(status)
        leave(status)

    def write(text: str) -> int:
        if state["exit"] is None and not state["coded"] and _thread.get_ident() == thread:
            state["exit"] = _text_of_python(sys._getframe(), text)
        return written(text)

    sys.exit = exit  # type: ignore[assignment]
    if stream is not None:
        written = stream.write
        stream.write = write  # type: ignore[method-assign]


def _text_of_python(frame: Any, text: str) -> str | None:
    """Return the text that Python itself writes; None while the program runs.

    Args:
        frame: The frame of the stream's `write`. Streams that replace stderr may have called it.
        text: What that `write` gets.
    """
    for _ in range(_MAX_STREAMS):
        if frame.f_back is None:
            break
        frame = frame.f_back
    code = frame.f_code
    if frame.f_back is not None or code.co_name == "<module>":
        return None
    # A function that Python calls at the end for another purpose does not get the text.
    number = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _HAS_VARARGS)
    for name in code.co_varnames[:number]:
        value = frame.f_locals.get(name)
        for given in value if isinstance(value, tuple) else (value,):
            if isinstance(given, str) and given.strip() and (given in text or text in given):
                return given[:_MAX_TEXT]
    return None


def _record(path: str, state: dict[str, Any]) -> None:
    if os.getpid() != state["pid"]:
        return
    # Python sets it for the exception that ends the program, even if the program replaced `sys.excepthook`.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    message, trace = "", ""
    more: dict[str, Any] = {"exit": state["exit"]}
    if error is not None:
        described = describe(error)
        more = {"exception": described}
        message = described["type"] + ": " + described["message"]
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MAX_TEXT:]
    extra = {"py_callstack": trace, "timestamp": str(int(time.time()))}
    try:
        with open(path, "w") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}, "trainyard": more}, file)
    except OSError:
        pass


if __name__ == "sitecustomize":
    for prepare in (install, let_children_end, let_programs_end, write_event_files):
        try:
            prepare()
        except Exception:
            traceback.print_exc()
    import_hidden("sitecustomize", os.path.dirname(__file__))
