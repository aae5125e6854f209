"""A sign of life to the service, and its answer: what the person wants by now."""

import logging
import threading
from collections.abc import Callable

from trainyard.contract.wire.reports import Claim, Heartbeat, HeartbeatReply
from worker.reporting.service_client import RefusedError, ServiceClient, ServiceError

log = logging.getLogger(__name__)


class HeartbeatThread:
    """A thread that beats every `interval` seconds, and at once when woken."""

    def __init__(
        self,
        interval: float,
        connect: Callable[[], ServiceClient],
        execution: Callable[[], int],
        on_reply: Callable[[HeartbeatReply], None],
        *,
        late_claim: Claim | None = None,
        node: int = 0,
    ) -> None:
        self._interval = interval
        self._connect = connect
        self._execution = execution
        self._on_reply = on_reply
        self._late_claim = late_claim
        self._node = node
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send_now(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        client = self._connect()
        try:
            while not self._closing:
                self._beat(client)
                self._wake.wait(self._interval)
                self._wake.clear()
        except RefusedError as error:
            log.warning("the service wants no more heartbeats: %s", error)
        finally:
            client.close()

    def _beat(self, client: ServiceClient) -> None:
        try:
            self._claim_late(client)
            body = Heartbeat(execution=self._execution(), node=self._node).model_dump_json()
            reply = client.post("heartbeat", body)
        except RefusedError:
            raise
        except ServiceError as error:
            log.info("no heartbeat: %s", error)
            return
        # A newer service may say more than this worker knows, and that must not hide what it does know.
        known = {name: value for name, value in reply.items() if name in HeartbeatReply.model_fields}
        try:
            self._on_reply(HeartbeatReply.model_validate(known))
        except ValueError as error:
            log.info("a heartbeat's answer was not understood: %s", error)

    def _claim_late(self, client: ServiceClient) -> None:
        """A claim that files decided is told to the service as soon as it can be reached."""
        if self._late_claim is None:
            return
        try:
            client.post("claim", self._late_claim.model_dump_json())
        except RefusedError as error:
            # The file made this run the one; the service's other claimant found it and has gone.
            log.warning("the late claim was refused: %s", error)
        self._late_claim = None
