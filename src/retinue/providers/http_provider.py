"""A provider for one model server, over one of its APIs. What the server refuses is changed and sent again."""

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta
from retinue.domain.run import Reason
from retinue.providers.errors import ProviderError, Refusal, sanitize_server_text
from retinue.providers.interface import ServerAccess
from retinue.providers.key_command import KeyCommand
from retinue.providers.learned_changes import LearnedChanges
from retinue.providers.refusals import SentRequest, find_change, is_unknown_route
from retinue.providers.reply_data import ReplyOrigin, server_tag
from retinue.providers.request_changes import NO_CHANGES, WIRE, RequestChange, RequestChanges
from retinue.providers.request_encoding import RequestFormat, encode_request
from retinue.providers.stream_request import CONNECT_TIMEOUT_S, StreamingRequest
from retinue.providers.structured_output import adapt_schema, schema_fingerprint, take_answer
from retinue.providers.wire_format import ReaderInputs, RequestTarget, WireFormat

MAX_CHANGES = 4
"""Changes to one request, after which the refusal is reported."""


class HttpProvider:
    """Send requests to one base URL. The key is read for each request and not stored.

    Args:
        wires: The server's APIs; the first is used until the server names another one.
        access: The server's URL and key.
        learned: Where changes are remembered; without it, they last as long as the provider.
        key_command: The command that prints the key, if there is one.
        connect_timeout_s: Seconds for connecting.
    """

    def __init__(
        self,
        wires: Sequence[WireFormat],
        access: ServerAccess,
        *,
        learned: LearnedChanges | None = None,
        key_command: KeyCommand | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._wires = {wire.name: wire for wire in wires}
        self._default_wire = wires[0]
        self._base_url = access.base_url.rstrip("/")
        self._access = access
        self._learned = learned
        self._key_command = key_command
        self._own_changes: dict[str, RequestChanges] = {}
        """Changes by model, where there is no place to remember them."""
        self._connections = {
            wire.name: StreamingRequest(
                url=wire.endpoint(self._base_url),
                key_variable=access.key_variable,
                network=access.network,
                connect_timeout_s=connect_timeout_s,
            )
            for wire in wires
        }
        self._server_tags = {wire.name: server_tag(wire.name, self._base_url) for wire in wires}
        self._formats: dict[tuple[str, str, str], RequestFormat] = {}

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        """Request a reply; after a refusal that names what may be changed, change it and ask again.

        Raises:
            ProviderError: The request failed, or a refusal cannot be answered by a change.
        """
        attempt = _Attempt(self._changes_for(request.model.name), self._wires)
        has_new_key = False
        while True:
            wire = self._wire_for(attempt.changes)
            try:
                reply = await self._send(request, wire, attempt.changes, on_delta)
            except ProviderError as error:
                if error.reason is Reason.AUTH and self._key_command is not None and not has_new_key:
                    self._key_command.forget()
                    has_new_key = True
                    continue
                if error.refusal is None:
                    raise
                attempt.answer(error, error.refusal, self._describe_request(request, wire, attempt.changes))
                continue
            self._remember(request.model.name, attempt.made, on_delta)
            return reply

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    def _wire_for(self, changes: RequestChanges) -> WireFormat:
        return self._wires.get(changes.treatment_of(WIRE), self._default_wire)

    def _changes_for(self, model: str) -> RequestChanges:
        if self._learned is not None:
            return self._learned.changes_for(self._base_url, model)
        return self._own_changes.get(model, NO_CHANGES)

    async def _send(
        self,
        request: ModelRequest,
        wire: WireFormat,
        changes: RequestChanges,
        on_delta: Callable[[ReplyDelta], None],
    ) -> ModelReply:
        connection = self._connections[wire.name]
        key = await self._resolve_key(connection)
        target = self._target(wire, request.model.name, changes)
        prepared = self._prepare(request, wire, target)
        encoded = encode_request(prepared, self._format_for(wire, target))
        origin = ReplyOrigin(server=target.server, model=target.model, prefix=encoded.prefix)
        reader = wire.reader(ReaderInputs(on_delta=on_delta, key=key, origin=origin))
        headers = {**self._key_headers(wire, key, request, changes), **self._access.headers}
        await connection.stream(headers, encoded.chunks, reader, on_delta, key)
        received = reader.reply(sent_bytes=encoded.size)
        reply = take_answer(received, request, prepared)
        if reply.text != received.text:
            # Arguments are not streamed: show the answer after what was.
            on_delta(ReplyDelta(text=f"\n{reply.text}" if received.text else reply.text))
        return reply

    def _prepare(self, request: ModelRequest, wire: WireFormat, target: RequestTarget) -> ModelRequest:
        adapted = adapt_schema(
            request, target.changes, schema_disables_tools=self._access.schema_disables_tools
        )
        return wire.prepare(adapted, target)

    async def _resolve_key(self, connection: StreamingRequest) -> str:
        source = self._access.api_key if self._key_command is None else await self._key_command.fetch()
        return connection.resolve_key(source)

    def _key_headers(
        self, wire: WireFormat, key: str, request: ModelRequest, changes: RequestChanges
    ) -> Mapping[str, str]:
        if not self._access.key_header:
            return wire.headers(key, request, changes)
        return {**wire.headers("", request, changes), **({self._access.key_header: key} if key else {})}

    def _target(self, wire: WireFormat, model: str, changes: RequestChanges) -> RequestTarget:
        return RequestTarget(
            server=self._server_tags[wire.name],
            base_url=self._base_url,
            model=model,
            changes=changes,
            thinking_field=self._access.thinking_field,
            extra_fields=self._access.body,
        )

    def _format_for(self, wire: WireFormat, target: RequestTarget) -> RequestFormat:
        key = (wire.name, target.model, target.changes.key)
        if (found := self._formats.get(key)) is None:
            found = self._formats[key] = wire.request_format(target)
        return found

    def _describe_request(
        self, request: ModelRequest, wire: WireFormat, changes: RequestChanges
    ) -> SentRequest:
        """Return what was sent, with the fields that are not the user's own."""
        target = self._target(wire, request.model.name, changes)
        prepared = self._prepare(request, wire, target)
        fields = self._format_for(wire, target).build_fields(prepared)
        return SentRequest(
            wire=wire.name,
            fields={name: value for name, value in fields.items() if name not in self._access.body},
            changes=changes,
            schema=schema_fingerprint(prepared.output_schema),
        )

    def _remember(
        self, model: str, made: Sequence[RequestChange], on_delta: Callable[[ReplyDelta], None]
    ) -> None:
        """Remember the changes after which the request was accepted, and say once what is not sent any more."""
        lasting = [each for each in made if each.is_remembered]
        if not lasting:
            return
        clean = [each.with_reason(sanitize_server_text(each.reason)) for each in lasting]
        if self._learned is not None:
            self._learned.learn(self._base_url, model, clean)
        else:
            changes = self._own_changes.get(model, NO_CHANGES)
            for each in clean:
                changes = changes.add(each)
            self._own_changes[model] = changes
        on_delta(ReplyDelta(notice=f"{model}: {'; '.join(each.describe() for each in clean)}"))


class _Attempt:
    """The changes made to one request."""

    def __init__(self, changes: RequestChanges, wires: Collection[str]) -> None:
        self.changes = changes
        self.made: list[RequestChange] = []
        self._wires = set(wires)
        """The APIs that the server may have."""
        self._count = 0
        self._before_switch: tuple[ProviderError, Refusal, SentRequest] | None = None

    def answer(self, error: ProviderError, refusal: Refusal, sent: SentRequest) -> None:
        """Change what was refused.

        Raises:
            ProviderError: The refusal must be reported.
        """
        if self._before_switch is not None and is_unknown_route(refusal):
            # The server does not have the other API after all: answer its first refusal in another way.
            self._wires.discard(sent.wire)
            error, refusal, sent = self._before_switch
            self.changes = sent.changes
            self._before_switch = None
            self.made.pop()
        others = [name for name in self._wires if name != sent.wire]
        change = find_change(refusal, replace(sent, other_wires=others))
        if change is None or self._count == MAX_CHANGES:
            raise error
        self._before_switch = (error, refusal, sent) if change.name == WIRE else None
        self._count += 1
        self.made.append(change)
        self.changes = self.changes.add(change)
