"""The worker's periodic heartbeat, whose response carries the desired state."""

import logging
import threading
from collections.abc import Callable

from trainyard.contract.wire.reports import Claim, Heartbeat, HeartbeatReply
from worker.reporting.service_client import RefusedError, ServiceClient, ServiceError, UnknownAttemptError

log = logging.getLogger(__name__)


class HeartbeatThread:
    """Sends a heartbeat every `interval` seconds, and at once after `send_now`."""

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
        """`late_claim` is a claim that was decided by files and that the service has yet to learn."""
        self._interval = interval
        self._connect = connect
        self._execution = execution
        self._on_reply = on_reply
        self._late_claim = late_claim
        self._node = node
        self.replies = 0
        """How many heartbeats were answered."""
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
                self._wake.wait(max(self._interval, self._send_safely(client)))
                self._wake.clear()
        except RefusedError as error:
            log.warning("the service refuses heartbeats, and none are sent any more: %s", error)
        finally:
            client.close()

    def _send_safely(self, client: ServiceClient) -> float:
        """Call `_send`, and log any other error, such as a full disk, so that later heartbeats are still sent."""
        try:
            return self._send(client)
        except RefusedError:
            raise
        except Exception:
            log.exception("a heartbeat failed")
            return 0.0

    def _send(self, client: ServiceClient) -> float:
        """Send one heartbeat and handle the response; return the minimum seconds until the next heartbeat."""
        try:
            self._claim_late(client)
            body = Heartbeat(execution=self._execution(), node=self._node).model_dump_json()
            reply = client.post("heartbeat", body)
        except RefusedError:
            raise
        except UnknownAttemptError as error:
            log.warning("the service does not know this attempt; the next heartbeat is sent later: %s", error)
            return error.retry_after or 0.0
        except ServiceError as error:
            log.info("heartbeat failed: %s", error)
            return 0.0
        # A newer service may send fields that this worker does not know.
        known = {name: value for name, value in reply.items() if name in HeartbeatReply.model_fields}
        try:
            self._on_reply(HeartbeatReply.model_validate(known))
        except ValueError as error:
            log.info("invalid answer to a heartbeat: %s", error)
        self.replies += 1
        return 0.0

    def _claim_late(self, client: ServiceClient) -> None:
        """Send the late claim as soon as the service can be reached."""
        if self._late_claim is None:
            return
        try:
            client.post("claim", self._late_claim.model_dump_json())
        except RefusedError as error:
            # This run holds the claim file, so the run that the service knows has read it and exited.
            log.warning("the late claim was refused: %s", error)
        self._late_claim = None
