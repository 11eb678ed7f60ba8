"""Read the messages of a request: what the user says now, what was said before, what the system says.

The words around earlier turns are ours; the turns are quoted as they are. Only user and assistant text is told: tool
calls and reasoning of earlier runs belong to sessions, which an agent resumes by its own id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.core.chunk import encode
from runtime.errors import InputInvalid

Message = Mapping[str, Any]

_SPEAKERS = {"user": "User", "assistant": "Assistant"}
_SYSTEM = ("system", "developer")


def content_text(content: Any) -> str:
    """Return the text of a message's content: the text itself, or its text parts, one a line. Other parts are left
    out; "" if there is no text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    return "\n".join(part for part in parts if isinstance(part, str))


def last_user_text(input: Mapping[str, Any]) -> str:
    """Return what the user says in the last message.

    Raises InputInvalid `message_invalid` if the last message is not the user's or holds no text (contract 11.1: an
    agent without a prompt has nothing to do)."""
    messages = _messages(input)
    last = messages[-1] if messages else None
    said = content_text(last.get("content")) if last is not None and last.get("role") == "user" else ""
    if not said.strip():
        raise InputInvalid(
            "The last message must be the user's and hold text: that is what the agent is asked to do.",
            code="message_invalid",
            field="messages",
        )
    return said


def said_now(input: Mapping[str, Any]) -> str:
    """Return what the user says now: answers to what an interrupted run asked (P23), else the last message.

    Raises InputInvalid as `last_user_text` does, if nothing is answered."""
    answers = input.get("resume")
    if not isinstance(answers, Sequence) or isinstance(answers, str | bytes) or not answers:
        return last_user_text(input)
    lines = [_answer(each) for each in answers if isinstance(each, Mapping)]
    return "\n".join(["The user has answered what you asked:", *lines, "Go on from there."])


def is_granted(answer: Mapping[str, Any]) -> bool:
    """Return whether the user says yes: `resolved`, unless the payload says `approved: false`."""
    payload = answer.get("payload")
    approved = payload.get("approved", True) if isinstance(payload, Mapping) else payload is not False
    return answer.get("status") == "resolved" and bool(approved)


def _answer(answer: Mapping[str, Any]) -> str:
    asked, payload = answer.get("interrupt"), answer.get("payload")
    question = asked.get("message") if isinstance(asked, Mapping) else None
    line = f"- {question or answer.get('interruptId')} {'Yes.' if is_granted(answer) else 'No.'}"
    return line if payload is None else f"{line} {encode(payload).decode('utf-8', 'replace')}"


def system_text(input: Mapping[str, Any]) -> str:
    """Return the system and developer messages of the request, joined by an empty line; "" if there are none."""
    said = [content_text(message.get("content")) for message in _messages(input) if message.get("role") in _SYSTEM]
    return "\n\n".join(part for part in said if part.strip())


def conversation(input: Mapping[str, Any], history: Sequence[Message]) -> list[Message]:
    """Return the whole conversation, oldest first, the new message last.

    AG-UI clients send all of it with every request, and then it stands as sent. One that sent a single message left
    the rest to us: `history`, the thread's earlier messages as stored, goes before it."""
    messages = _messages(input)
    spoken = [message for message in messages if message.get("role") not in _SYSTEM]
    return messages if len(spoken) > 1 else [*history, *messages]


def flattened(input: Mapping[str, Any], history: Sequence[Message]) -> str:
    """Return one text for an agent that has no session to resume: earlier turns as a preamble, then the new message.

    Without earlier turns it is the new message alone. Raises InputInvalid as `last_user_text` does."""
    said = said_now(input)
    turns = []
    told = conversation(input, history)
    for message in told if input.get("resume") else told[:-1]:
        speaker = _SPEAKERS.get(message.get("role") or "")
        text = content_text(message.get("content")).strip()
        if speaker is not None and text:
            turns.append(f"{speaker}: {text}")
    if not turns:
        return said
    earlier = "\n\n".join(turns)
    return f"What was said in this conversation so far, oldest first:\n\n{earlier}\n\nThe new message:\n\n{said}"


def _messages(input: Mapping[str, Any]) -> list[Message]:
    messages = input.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        return []
    return [message for message in messages if isinstance(message, Mapping)]
