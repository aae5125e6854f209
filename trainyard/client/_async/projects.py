"""Calls about created projects and their members."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from trainyard.client._async.transport import AsyncTransport
from trainyard.client.errors import NotFoundError
from trainyard.client.request import JSON, Request, model, no_result, paged, segment, without_none
from trainyard.contract.wire.projects import MemberResource, ProjectDetail, ProjectResource, ProjectUsage


def _path(project: str, *more: str) -> str:
    if not project or "/" in project or project in (".", ".."):
        raise NotFoundError(f"there is no project {project!r}", code="project_not_found")
    return "/".join(["/v1/projects", quote(project, safe=""), *more])


class AsyncProjectCalls(AsyncTransport):
    """Calls about projects."""

    def projects(self) -> AsyncIterator[ProjectResource]:
        """Iterate over the created projects by name: open projects, and private projects of which you are a member."""
        return self._pages(paged("/v1/projects", ProjectResource))

    async def project(self, name: str) -> ProjectDetail:
        """Return a project with its members."""
        return await self._send(Request("GET", _path(name), model(ProjectDetail)))

    async def project_usage(self, name: str) -> ProjectUsage:
        """Return what the jobs of a project use now, and its quotas."""
        return await self._send(Request("GET", _path(name, "usage"), model(ProjectUsage)))

    async def create_project(self, name: str, *, description: str = "", visibility: str = "open") -> ProjectDetail:
        """Create a project, as its manager.

        Args:
            visibility: `private`: only members and administrators read its jobs.
        """
        body = {"name": name, "description": description, "visibility": visibility}
        content = json.dumps(body).encode()
        request = Request("POST", "/v1/projects", model(ProjectDetail), headers=JSON, content=content, repeatable=False)
        return await self._send(request)

    async def change_project(self, name: str, **changes: Any) -> ProjectDetail:
        """Change a project that you manage.

        Args:
            changes: `description`, `visibility`, and as an administrator `max_gpus` and `max_queued`; None: no limit.
        """
        content = json.dumps(changes).encode()
        return await self._send(Request("PATCH", _path(name), model(ProjectDetail), headers=JSON, content=content))

    async def delete_project(self, name: str) -> None:
        """Delete a project that you manage. Its jobs stay, with its name as a label."""
        await self._send(Request("DELETE", _path(name), no_result))

    async def set_project_member(self, name: str, user: str, role: str | None = None) -> MemberResource:
        """Add a member to a project that you manage, or change the role of a member.

        Args:
            role: `viewer`, `member` or `manager`; None: `member`.
        """
        path, content = _path(name, "members", segment(user, "user")), json.dumps(without_none(role=role)).encode()
        return await self._send(Request("PUT", path, model(MemberResource), headers=JSON, content=content))

    async def remove_project_member(self, name: str, user: str) -> None:
        """Remove a member from a project that you manage, or yourself from any."""
        await self._send(Request("DELETE", _path(name, "members", segment(user, "user")), no_result))
