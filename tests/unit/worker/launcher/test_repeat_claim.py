"""The claim of the other nodes: they repeat that of node 0 and get the same secrets."""

import itertools

import httpx
import pytest

from tests.support.service_transport import service_transport
from tests.unit.worker.launcher.test_nodes import document
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import Claim
from worker.launcher.claim import repeat_claim
from worker.reporting.service_client import ServiceClient, ServiceError


class TestRepeatClaim:
    def repeat(self, tmp_path, answer, *, secrets=("HF_TOKEN",), write_claim=True):
        """Returns the secrets that another node gets, and the claim that it sent."""
        sent = []

        def respond(request):
            sent.append(request)
            return httpx.Response(200, json=answer)

        launch = document()
        environment = launch.spec.environment.model_copy(update={"secrets": secrets})
        launch = launch.model_copy(update={"spec": launch.spec.model_copy(update={"environment": environment})})
        layout = AttemptLayout(tmp_path)
        claim = Claim(nonce="nonce-0001", host="node1", pid=7, scheduler_id="5")
        if write_claim:
            layout.claim.write_text(claim.model_dump_json())
        client = ServiceClient("http://service", "a1", "token", transport=service_transport(respond))
        times = itertools.count(step=20.0)
        result = repeat_claim(layout, launch, client, now=lambda: next(times))
        assert [Claim.model_validate_json(request.content) for request in sent] == [claim] * len(sent)
        return result, len(sent)

    def test_other_nodes_get_the_secrets_by_node_0s_claim(self, tmp_path):
        assert self.repeat(tmp_path, {"execution": 1, "secrets": {"HF_TOKEN": "x"}}) == ({"HF_TOKEN": "x"}, 1)

    def test_job_without_secrets_sends_no_claim(self, tmp_path):
        assert self.repeat(tmp_path, {}, secrets=()) == ({}, 0)

    def test_deleted_secret_is_an_error(self, tmp_path):
        with pytest.raises(ServiceError, match="HF_TOKEN was deleted"):
            self.repeat(tmp_path, {"execution": 1, "secrets": {}})

    def test_missing_claim_file_is_an_error(self, tmp_path):
        with pytest.raises(OSError, match="claim"):
            self.repeat(tmp_path, {}, write_claim=False)
