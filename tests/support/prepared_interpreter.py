"""Runs programs in forks of one interpreter that has imported their library, which takes a second of processor time."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_SERVER = """
import json, os, sys, traceback
exec(sys.argv[1])
for request in sys.stdin:
    text, folder, environ = json.loads(request)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(folder)
            os.environ.update(environ)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            exec(text)
            with open("out.json", "w") as file:
                json.dump(out, file)
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class PreparedInterpreter:
    """An interpreter that has run `head`; `prepared_interpreter` starts one."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self._process = process

    def run(self, text: str, folder: Path, environ: Mapping[str, str]) -> Any:
        """Run statements in a folder to their end, and return what they assigned to `out`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([text, str(folder), dict(environ)]) + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline().strip()
        assert status == "0", (folder / "output.txt").read_text() if status else "the interpreter has ended"
        return json.loads((folder / "out.json").read_text())


@contextmanager
def prepared_interpreter(head: str, environ: Mapping[str, str]) -> Iterator[PreparedInterpreter]:
    """Start an interpreter, run `head` in it in a folder of its own, and end it with the block."""
    command = [sys.executable, "-c", _SERVER, head]
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            command, env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        yield PreparedInterpreter(process)
