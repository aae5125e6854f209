"""The client: all calls over a shared connection pool."""

from trainyard.client._async.access import AsyncAccessCalls
from trainyard.client._async.data_files import AsyncDataFileCalls
from trainyard.client._async.metrics import AsyncMetricsCalls
from trainyard.client._async.models import AsyncModelCalls
from trainyard.client._async.projects import AsyncProjectCalls
from trainyard.client._async.service import AsyncServiceCalls
from trainyard.client._async.streams import AsyncStreamCalls
from trainyard.client._async.transport import AsyncTransport
from trainyard.client._async.views import AsyncViewCalls


class AsyncClient(
    AsyncStreamCalls,
    AsyncDataFileCalls,
    AsyncMetricsCalls,
    AsyncModelCalls,
    AsyncProjectCalls,
    AsyncServiceCalls,
    AsyncAccessCalls,
    AsyncViewCalls,
):
    __doc__ = AsyncTransport.__doc__
