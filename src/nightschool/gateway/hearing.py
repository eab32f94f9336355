"""Every way by which feedback comes in, as routes."""

from __future__ import annotations

from dataclasses import replace

from starlette.routing import Route

from nightschool.gateway.browser_routes import BROWSER_PATH, BrowserRoutes
from nightschool.gateway.feedback_routes import FeedbackRoutes
from nightschool.gateway.otel_routes import OtelRoutes
from nightschool.gateway.settings import GatewaySettings
from nightschool.gateway.webhook_routes import WebhookRoutes
from nightschool.store.database import Store

OPEN_TO_PAGES = (BROWSER_PATH,)


def feedback_routes(store: Store, settings: GatewaySettings) -> list[Route]:
    hearing = replace(settings.feedback, privacy=settings.privacy)
    feedback = FeedbackRoutes(store, settings.access, hearing)
    browser = BrowserRoutes(store, settings.access, hearing)
    webhooks = WebhookRoutes(store, hearing)
    otel = OtelRoutes(store, settings.access, hearing)
    return [
        Route("/v1/feedback", feedback.post, methods=["POST"]),
        Route("/v1/feedback", feedback.get, methods=["GET"]),
        Route("/v1/feedback/tokens", browser.mint, methods=["POST"]),
        Route(BROWSER_PATH, browser.post, methods=["POST", "OPTIONS"]),
        Route("/v1/webhooks/{name}", webhooks.post, methods=["POST"]),
        Route("/v1/logs", otel.post, methods=["POST"]),
    ]
