"""The words of AG-UI: its event types and the keys that each of them has at top level (contract 2.1).

The table says what stays at top level on the wire, and what counts in a fingerprint.
"""

from __future__ import annotations

# contract 2.1: the keys of each type besides the shared ones. An unknown type has the shared ones only.
SPEC_KEYS: dict[str, frozenset[str]] = {
    kind: frozenset(keys.split())
    for kind, keys in {
        "RUN_STARTED": "threadId runId parentRunId input",
        "RUN_FINISHED": "threadId runId result outcome usage",
        "RUN_ERROR": "message code usage",
        "STEP_STARTED": "stepName",
        "STEP_FINISHED": "stepName",
        "TEXT_MESSAGE_START": "messageId role name",
        "TEXT_MESSAGE_CONTENT": "messageId delta",
        "TEXT_MESSAGE_END": "messageId",
        "TEXT_MESSAGE_CHUNK": "messageId role delta name",
        "TOOL_CALL_START": "toolCallId toolCallName parentMessageId",
        "TOOL_CALL_ARGS": "toolCallId delta",
        "TOOL_CALL_END": "toolCallId",
        "TOOL_CALL_CHUNK": "toolCallId toolCallName parentMessageId delta",
        "TOOL_CALL_RESULT": "messageId toolCallId content role",
        "THINKING_START": "title",
        "THINKING_END": "",
        "THINKING_TEXT_MESSAGE_START": "",
        "THINKING_TEXT_MESSAGE_CONTENT": "delta",
        "THINKING_TEXT_MESSAGE_END": "",
        "REASONING_START": "messageId",
        "REASONING_END": "messageId",
        "REASONING_MESSAGE_START": "messageId role",
        "REASONING_MESSAGE_CONTENT": "messageId delta",
        "REASONING_MESSAGE_END": "messageId",
        "REASONING_MESSAGE_CHUNK": "messageId delta",
        "REASONING_ENCRYPTED_VALUE": "subtype entityId encryptedValue",
        "STATE_SNAPSHOT": "snapshot",
        "STATE_DELTA": "delta",
        "MESSAGES_SNAPSHOT": "messages",
        "ACTIVITY_SNAPSHOT": "messageId activityType content replace",
        "ACTIVITY_DELTA": "messageId activityType patch",
        "RAW": "event source",
        "CUSTOM": "name value",
    }.items()
}
SHARED_KEYS = frozenset({"type", "timestamp", "rawEvent", "metadata"})
