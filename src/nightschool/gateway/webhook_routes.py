"""POST /v1/webhooks/NAME: outcomes that another system signs and sends."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.errors import NightschoolError
from nightschool.feedback.settings import FeedbackSettings
from nightschool.feedback.webhooks import check_signature, read_delivery
from nightschool.gateway.feedback_routes import MAX_FEEDBACK_BYTES, answer, parse_json, refused, store_feedback
from nightschool.gateway.incoming import read_body, text_headers
from nightschool.gateway.replies import refuse
from nightschool.store.database import Store


class WebhookRoutes:
    """Taking deliveries. The signature is the permission: a sender has no key of ours."""

    def __init__(self, store: Store, settings: FeedbackSettings) -> None:
        self.store = store
        self.settings = settings

    async def post(self, request: Request) -> Response:
        """200 or 202 when it is stored, now or before (`repeated`); 200 with state `ignored` for other deliveries.

        409 when the delivery's id belongs to one with other content.
        """
        try:
            hook = self.settings.webhooks.get(request.path_params["name"])
            if hook is None:
                raise refuse(404, "unknown_webhook", "There is no such webhook.", "", "docs/feedback.md")
            raw = await read_body(request.scope, request.receive, MAX_FEEDBACK_BYTES) or b""
            delivery = check_signature(hook, text_headers(request.scope), raw, time.time())
            item = read_delivery(hook, parse_json(raw), delivery)
            if item is None:
                return JSONResponse({"state": "ignored"})
            receipt = await store_feedback(self.store, item, False, self.settings)
        except NightschoolError as error:
            return refused(error)
        return answer(receipt)
