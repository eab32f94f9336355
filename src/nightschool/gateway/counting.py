"""POST /v1/messages/count_tokens: how long a prompt is, asked of whoever would read it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.errors import NightschoolError, RefusedError
from nightschool.gateway.dialects.dialect import read_request
from nightschool.gateway.dialects.messages import MESSAGES, to_chat
from nightschool.gateway.forwarding import forwarded, passed, upstream_path
from nightschool.gateway.incoming import MAY_CHAT, read_body, require
from nightschool.gateway.proxy import Proxy
from nightschool.gateway.replies import as_refusal

PATH = "/v1/messages/count_tokens"


class TokenCounter:
    """Counts as the engine would render the request. Nothing of it is recorded: nobody answers."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def post(self, request: Request) -> Response:
        try:
            return await self._count(request)
        except NightschoolError as error:
            refusal = as_refusal(error)
            return JSONResponse(MESSAGES.refusal(refusal), refusal.status, refusal.text_headers)

    async def _count(self, request: Request) -> Response:
        proxy, scope, upstream = self.proxy, request.scope, self.proxy.settings.upstream
        identity = require(scope, proxy.settings.access, MAY_CHAT)
        raw = await read_body(scope, request.receive, proxy.settings.max_body_bytes) or b""
        asked = read_request(raw, MESSAGES)
        route = await proxy.aliases.scoped(identity.tenant).resolve(asked.model, identity.role, None)
        if MESSAGES.word in upstream.speaks:
            headers = forwarded(scope, upstream, proxy.settings.access.is_ours)
            with proxy.policies.using(route.policy):
                lease = await proxy.policies.lease(route.policy, route.model)
                body = asked.with_fields({} if lease.model == asked.model else {"model": lease.model})
                path = upstream_path(PATH, scope, upstream)
                with await proxy.engine.post(path, body, headers) as answer:
                    reply = await answer.read()
            return Response(reply, answer.status, {k.decode(): v.decode("latin-1") for k, v in passed(answer)})
        if route.model is not None:
            raise RefusedError(
                "Nothing was counted.", "This upstream does not count tokens.", "Count with the provider's own tools."
            )
        chat = to_chat(asked.fields, ())
        with proxy.policies.using(route.policy):
            lease = await proxy.policies.lease(route.policy)
            prompt = {"model": lease.model, "messages": chat["messages"], "add_generation_prompt": True}
            ids = await proxy.engine.tokenize(prompt | {"tools": chat["tools"]} if "tools" in chat else prompt)
        return JSONResponse({"input_tokens": len(ids)})
