"""The command line's way to an instance: find it, ask it, and bear with it while it restarts (`trials.py`).

The address is looked up anew for each attempt: an instance that comes back may come back on another port.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

import httpx

from runtime.errors import InputInvalid
from runtime.settings import Settings
from serve_app import instance_file
from serve_app.trials import Lost, Patience, Refusal, Trial

TOKEN = "OUTLAST_TOKEN"  # noqa: S105 - the name of the variable
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
CONNECT_S = 5.0
ANSWER_S = 30.0  # more than twice what a gateway gives its shards
SERVER_ERROR = 500


class Instance:
    """One instance, by `url`, or by the instance.json of the data directory. Close it, or use it in `with`.

    Raises InputInvalid `url_invalid`."""

    def __init__(self, settings: Settings, url: str | None = None, patience: Patience | None = None) -> None:
        self.settings = settings
        self.patience = patience or Patience()
        self._url = None if url is None else checked_url(url)
        self._http: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._http is not None:
            self._http.close()

    @property
    def named(self) -> str | None:
        """Return the address that --url gave, or None."""
        return self._url

    def info(self) -> instance_file.InstanceInfo | None:
        """Return what instance.json says; None with --url, or if it says nothing."""
        return None if self._url else instance_file.read(self.settings.data_path)

    def lives(self) -> bool:
        """Return whether the process that instance.json names is alive, whether it answers or not."""
        info = self.info()
        return info is not None and info.alive

    def trial(self, begun: bool) -> Trial:
        """Return the attempts of a new request; `begun`: the instance answered something that belongs to it."""
        return Trial(self.patience, begun, self.lives)

    def record(self, run_id: str, begun: bool = False) -> dict[str, Any]:
        """Return the record of a run with its claims. Raises Refusal, InstanceNotFound."""
        record: dict[str, Any] = self.ask("GET", f"/api/runs/{run_id}", begun=begun)
        return record

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        begun: bool = False,
        also: frozenset[int] = frozenset(),
    ) -> Any:
        """Return the JSON of the answer, None if it has no body. `also`: statuses that are answers too.

        Raises Refusal, InstanceNotFound."""
        content = None if body is None else json.dumps(body).encode()
        trial = self.trial(begun)
        while True:
            try:
                with self.open(method, path, params=params, content=content, also=also) as response:
                    return _decoded(response)
            except Lost as lost:
                trial.wait(lost)

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        silence_s: float = ANSWER_S,
        also: frozenset[int] = frozenset(),
    ) -> Iterator[httpx.Response]:
        """Make one attempt; the body is read inside of the `with`. Raises Refusal, Lost."""
        base = self._base()
        timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **self._named(), **(headers or {})}
        if content is not None:
            sent["Content-Type"] = "application/json"
        try:
            with self._client(base).stream(
                method, base + path, params=params, headers=sent, content=content, timeout=timeout
            ) as response:
                if not (response.status_code in also or response.is_success):
                    _refuse(response)
                yield response
        except httpx.RequestError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise Lost(f"The instance at {base} does not answer: {_reason(error)}.", sent=not unsent) from error

    def _named(self) -> dict[str, str]:
        """Return the header that says who asks: OUTLAST_TOKEN; else, of an instance in a data directory of ours, its
        operator. That token goes nowhere but where the directory's own instance.json says."""
        token = os.environ.get(TOKEN, "")
        if not token and self._url is None:
            with suppress(OSError):
                token = (self.settings.data_path / instance_file.OPERATOR_FILE).read_text().strip()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _client(self, base: str) -> httpx.Client:
        if self._http is None:
            url = httpx.URL(base)
            # What the environment says about proxies is not about this machine; and certificates take 30 ms to load.
            self._http = httpx.Client(trust_env=url.host not in LOOPBACK, verify=url.scheme == "https")
        return self._http

    def _base(self) -> str:
        if self._url is not None:
            return self._url
        info = self.info()
        if info is None:
            place = self.settings.data_path
            raise Lost(f"No instance runs in {place}. Start one with `outlast serve`, or name one with --url.")
        return info.url.rstrip("/")


def checked_url(text: str) -> str:
    """Return `text` without its last slash. Raises InputInvalid `url_invalid` if it is no HTTP address."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise InputInvalid(
            f"{text!r} is not the address of an instance. Write it as http://127.0.0.1:8000.", code="url_invalid"
        )
    return text.rstrip("/")


def _reason(error: httpx.RequestError) -> str:
    return (str(error) or type(error).__name__).rstrip(".")


def _foreign(response: httpx.Response) -> Lost:
    what = f"HTTP {response.status_code}, but not as an Outlast instance"
    busy = response.status_code >= SERVER_ERROR  # a proxy whose instance is not there yet
    return Lost(f"{response.url.copy_with(query=None)} answers {what}.", sent=busy)


def _decoded(response: httpx.Response) -> Any:
    data = response.read()
    try:
        return json.loads(data) if data else None
    except ValueError as error:
        raise _foreign(response) from error


def _refuse(response: httpx.Response) -> None:
    """Raise what an answer that is not a success means: Refusal or Lost."""
    try:
        facts = json.loads(response.read())["error"]
        refusal = Refusal(response.status_code, str(facts["code"]), str(facts["message"]))
    except (ValueError, KeyError, TypeError):
        raise _foreign(response) from None
    if response.status_code < SERVER_ERROR:
        raise refusal
    after = response.headers.get("Retry-After", "")
    wait_s = float(after) if after.isdecimal() else 0.0
    raise Lost(refusal.message, sent=True, refusal=refusal, retry_after_s=wait_s)
