"""Routes of webhooks."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.api.dependencies import AppStateDep, EditorDep, NowDep, UserDep, window_of
from service.api.idempotency import UnsupportedKey, reject_key
from service.api.json_body import JsonRoute
from service.core.resources import resource_of
from service.db.models import Delivery, Webhook
from service.db.paging import PageRequest
from service.jobs.schemas import page_of
from service.plugins.webhooks import service as webhook_service
from service.plugins.webhooks.part import part_of
from service.plugins.webhooks.repository import WebhookRepository
from trainyard.contract.wire.access import DeliveryResource, NewWebhookResource, WebhookRequest, WebhookResource
from trainyard.contract.wire.pages import Page

PREFIX = "/v1/webhooks"

router = APIRouter(prefix=PREFIX, tags=["access"], route_class=JsonRoute)

WebhookId = Annotated[str, Path(pattern=r"^whk_[0-9a-z]{26}$", description="Id of the webhook: `whk_...`.")]
WebhookWindowDep = Annotated[PageRequest, Depends(window_of(r"^whk_[0-9a-z]{26}$"))]
DeliveryWindowDep = Annotated[PageRequest, Depends(window_of(r"^dlv_[0-9a-z]{26}$"))]


@router.post("", status_code=201, operation_id="create_webhook")
def create(
    app_state: AppStateDep, user: EditorDep, now: NowDep, body: WebhookRequest, idempotency_key: UnsupportedKey = None
) -> NewWebhookResource:
    """Subscribe a URL to status changes. The response contains, only this time, the `secret` that signs deliveries."""
    reject_key(idempotency_key)
    webhook = webhook_service.create(
        app_state.database,
        user,
        body,
        allowed=app_state.settings.webhook_allowed_hosts,
        resolver=part_of(app_state).resolver,
        now=now,
    )
    return NewWebhookResource(**_webhook(webhook).model_dump(), secret=webhook.secret)


@router.get("", operation_id="list_webhooks")
def list_all(app_state: AppStateDep, user: UserDep, window: WebhookWindowDep) -> Page[WebhookResource]:
    """List your webhooks; for administrators, the webhooks of all users."""
    with app_state.database.read() as session:
        rows, has_more = WebhookRepository(session).list_page(user.owner_filter, window)
    return page_of(rows, has_more, _webhook, lambda webhook: webhook.id)


@router.get("/{webhook_id}", operation_id="get_webhook")
def get(app_state: AppStateDep, user: UserDep, webhook_id: WebhookId) -> WebhookResource:
    """Get a webhook, without its secret."""
    with app_state.database.read() as session:
        return _webhook(WebhookRepository(session).get(webhook_id, user.owner_filter))


@router.delete("/{webhook_id}", status_code=204, operation_id="delete_webhook")
def delete(app_state: AppStateDep, user: EditorDep, webhook_id: WebhookId) -> None:
    """Delete a webhook, with its deliveries."""
    webhook_service.delete(app_state.database, user, webhook_id)


@router.post("/{webhook_id}/test", status_code=202, operation_id="test_webhook")
def test(app_state: AppStateDep, user: EditorDep, now: NowDep, webhook_id: WebhookId) -> DeliveryResource:
    """Send a test delivery; `deliveries` shows its result. A successful delivery enables a disabled webhook again."""
    delivery = webhook_service.test(app_state.database, user, webhook_id, now)
    part_of(app_state).notify()
    return _delivery(delivery)


@router.get("/{webhook_id}/deliveries", operation_id="list_deliveries")
def deliveries(
    app_state: AppStateDep, user: UserDep, window: DeliveryWindowDep, webhook_id: WebhookId
) -> Page[DeliveryResource]:
    """List the deliveries of a webhook, sent and waiting, newest first."""
    with app_state.database.read() as session:
        repository = WebhookRepository(session)
        webhook = repository.get(webhook_id, user.owner_filter)
        rows, has_more = repository.list_deliveries(webhook, window)
    return page_of(rows, has_more, _delivery, lambda delivery: delivery.id)


def _webhook(webhook: Webhook) -> WebhookResource:
    return resource_of(WebhookResource, webhook)


def _delivery(delivery: Delivery) -> DeliveryResource:
    waiting = delivery.next_at is not None
    return resource_of(
        DeliveryResource, delivery, state="waiting" if waiting else "delivered" if delivery.delivered_at else "given_up"
    )
