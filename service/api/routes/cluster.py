"""The route of the cluster: it only reads what the reconciler has stored."""

from fastapi import APIRouter

from service.api.dependencies import AppStateDep, NowDep, UserDep
from service.api.json_body import SlotRoute
from service.cluster.repository import ClusterRepository
from trainyard.contract.wire.cluster import ClusterResource

router = APIRouter(prefix="/v1/cluster", tags=["cluster"], route_class=SlotRoute)


@router.get("", operation_id="get_cluster")
def get_cluster(app_state: AppStateDep, _user: UserDep, now: NowDep) -> ClusterResource:
    """Get partitions, nodes by state and GPUs by type, as the scheduler last reported them."""
    with app_state.database.read() as session:
        return ClusterRepository(session).resource(app_state.settings.backend, now)
