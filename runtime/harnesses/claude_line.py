"""The typed form of Claude Code's commonest line, for speed: a streamed piece of a content block.

Strict on purpose. Every field that recorded CLIs (2.1.197, 2.1.332) print here is named with its type and no other is
taken, so a line that decodes has no part that was not looked at: no invalid UTF-8 or nesting hides in a field that
was skipped. A newer CLI that adds a field is read by the generic path, more slowly, until the field is named here.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from runtime.harnesses.blocks import TEXT, THINKING

# What such a line begins with; others are not worth a try. Whitespace or another order of keys is no error, only slow.
HOT_LINE = b'{"type":"stream_event","event":{"type":"content_block_delta",'


class _TextDelta(msgspec.Struct, tag_field="type", tag="text_delta", forbid_unknown_fields=True, gc=False):
    kind: ClassVar[str] = TEXT
    text: str


class _ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta", forbid_unknown_fields=True, gc=False):
    kind: ClassVar[str] = THINKING
    text: str = msgspec.field(name="thinking")


class _JsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta", forbid_unknown_fields=True, gc=False):
    kind: ClassVar[str] = ""  # makes no chunk: the whole input comes with the `assistant` line
    text: str = msgspec.field(name="partial_json")


class _SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta", forbid_unknown_fields=True, gc=False):
    kind: ClassVar[str] = ""
    text: str = msgspec.field(name="signature")


class _Event(msgspec.Struct, tag_field="type", tag="content_block_delta", forbid_unknown_fields=True, gc=False):
    index: int
    delta: _TextDelta | _ThinkingDelta | _JsonDelta | _SignatureDelta


class HotLine(msgspec.Struct, tag_field="type", tag="stream_event", forbid_unknown_fields=True, gc=False):
    """A `content_block_delta` of the main agent: `parent_tool_use_id` is null or absent."""

    event: _Event
    session_id: str
    uuid: str
    parent_tool_use_id: None = None
    api_message_id: str | None = None


decode_hot = msgspec.json.Decoder(HotLine).decode
encode_text = msgspec.json.Encoder().encode
