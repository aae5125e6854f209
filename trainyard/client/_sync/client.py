# Generated from _async/client.py by installation/sync_client.py; do not edit.
"""The client: all calls over one connection pool."""

from trainyard.client._sync.access import AccessCalls
from trainyard.client._sync.data_files import DataFileCalls
from trainyard.client._sync.metrics import MetricsCalls
from trainyard.client._sync.models import ModelCalls
from trainyard.client._sync.service import ServiceCalls
from trainyard.client._sync.streams import StreamCalls
from trainyard.client._sync.transport import Transport
from trainyard.client._sync.views import ViewCalls


class Client(
    StreamCalls,
    DataFileCalls,
    MetricsCalls,
    ModelCalls,
    ServiceCalls,
    AccessCalls,
    ViewCalls,
):
    __doc__ = Transport.__doc__
