"""What the routes of plans share: the planner of specs, and the reader of their data."""

from service.api.dependencies import AppState
from service.plugins.planner.data_plans import DataPlanner
from service.plugins.planner.service import Planner

NAME = "planner"


class PlannerPart:
    """The shared part."""

    def __init__(self, app_state: AppState):
        self.planner = Planner(app_state.settings, pool=app_state.process_pool)
        self.data_planner = DataPlanner(app_state.settings, app_state.run_files)


def part_of(app_state: AppState) -> PlannerPart:
    part: PlannerPart = app_state.plugin_parts[NAME]
    return part
