"""Slurm accounting for the lab: slurmdbd and a MariaDB in the lab's folder."""

import getpass
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tests.support.wait import wait_until


class Daemons(Protocol):
    """Starts daemons that end with it."""

    root: Path

    def spawn(self, name: str, command: list[str]) -> None: ...

    def start_accounting(self) -> None: ...

    def run(self, *command: str) -> str: ...


class Accounting:
    """The accounting daemons. They are started before the controller, which registers its cluster."""

    def __init__(self, lab: Daemons, database_port: int, port: int) -> None:
        self._lab = lab
        self._folder = lab.root / "mariadb"
        self._database_port = database_port
        self._port = port
        self._password = secrets.token_hex(8)

    def configuration(self) -> str:
        """Return the lines for slurm.conf."""
        return "\n".join(
            [
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=localhost",
                f"AccountingStoragePort={self._port}",
                # Not a password: the socket through which slurmdbd's clients reach munge.
                f"AccountingStoragePass={self._lab.root}/munge/socket",
                "AccountingStorageEnforce=associations,limits,qos",
                "AccountingStorageTRES=gres/gpu",
                "JobAcctGatherType=jobacct_gather/linux",
            ]
        )

    def start(self) -> None:
        """Start the daemons; return when the cluster is registered."""
        self._start_database()
        conf = self._lab.root / "slurmdbd.conf"
        conf.write_text(self._slurmdbd_conf())
        conf.chmod(0o600)
        self._lab.start_accounting()
        wait_until(self._registered, 60, f"slurmdbd; its log is in {self._lab.root}")

    def _registered(self) -> bool:
        with suppress(RuntimeError):
            if "lab" in self._lab.run("sacctmgr", "--noheader", "--parsable2", "list", "cluster").split("|"):
                return True
            self._lab.run("sacctmgr", "--immediate", "add", "cluster", "lab")
        return False

    def _start_database(self) -> None:
        # As root: a daemon that changes its user loses the parent-death signal.
        user = getpass.getuser()
        self._folder.mkdir()
        made = [_program("mariadb-install-db"), f"--user={user}", f"--datadir={self._folder}", "--skip-test-db"]
        subprocess.run([*made, "--auth-root-authentication-method=normal"], check=True, capture_output=True, timeout=60)
        options = [
            f"--user={user}",
            f"--datadir={self._folder}",
            f"--socket={self._socket}",
            "--bind-address=127.0.0.1",
        ]
        quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--skip-log-bin"]
        self._lab.spawn("mariadbd", ["mariadbd", "--no-defaults", *options, f"--port={self._database_port}", *quick])
        wait_until(self._answers, 60, f"MariaDB; its log is in {self._lab.root}")
        account = f"'slurm'@'127.0.0.1' IDENTIFIED BY '{self._password}'"
        self._sql(f"CREATE DATABASE slurm_acct_db; CREATE USER {account}")
        self._sql("GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1'")

    def _answers(self) -> bool:
        with suppress(subprocess.CalledProcessError):
            self._sql("SELECT 1")
            return True
        return False

    def _sql(self, statement: str) -> None:
        command = [_program("mariadb"), "--no-defaults", f"--socket={self._socket}", "--user=root", "-e", statement]
        subprocess.run(command, check=True, capture_output=True, timeout=30)

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"

    def _slurmdbd_conf(self) -> str:
        root = self._lab.root
        lines = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={root}/munge/socket",
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self._port),
            "SlurmUser": getpass.getuser(),
            "LogFile": f"{root}/slurmdbd-own.log",
            "PidFile": f"{root}/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": str(self._database_port),
            "StorageUser": "slurm",
            "StoragePass": self._password,
            "StorageLoc": "slurm_acct_db",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())


def _program(name: str) -> str:
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    assert path is not None, f"{name} was there a moment ago"
    return path
