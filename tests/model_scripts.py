"""What the model behind an agent says, as values: a prompt names a script, `play:NAME(key=value,...)`, and each turn of
the script is the answer to one request.

Nothing is remembered between requests but how often a failing one was asked and which holds are open, so any number of
runs play at once, a resumed session goes on, and the same request gets the same bytes. Every script takes `run`, the id
of whoever plays it: holds and failures are counted by it. `HOLD` in a text is where the answer stops until the test
lets it go on; without `hold=yes` it is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

HOLD = "\u2016"
BIG = 310_000  # what one line of an agent's output may well hold, and no pipe takes at once
HARD_TEXT = 'Émoji 🎉 日本語 العربية e\u0301 👩‍👩‍👧 \u2028 \u0085 "quotes" \\ back\tslash </tag> %s {} $HOME `id`'

_TAG = re.compile(r"play:([a-z]+)\(([^()]*)\)")

Params = Mapping[str, str]


@dataclass(frozen=True)
class Say:
    """Text, streamed word by word."""

    text: str


@dataclass(frozen=True)
class Think:
    """Reasoning; only Claude's API streams it in the open."""

    text: str


@dataclass(frozen=True)
class Run:
    """A call of the agent's shell."""

    command: str


@dataclass(frozen=True)
class Write:
    """A call of what the agent writes files with; `path` is inside its working directory."""

    path: str
    text: str


@dataclass(frozen=True)
class Lend:
    """A call of one of the run's host tools."""

    tool: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Fail:
    """The request is refused with `status`, the first `times` times it is asked."""

    status: int
    times: int = 1 << 30


@dataclass(frozen=True)
class Cut:
    """The stream breaks off here, the first `times` times."""

    times: int = 1 << 30


Step = Say | Think | Run | Write | Lend | Fail | Cut
Turn = tuple[Step, ...]


@dataclass(frozen=True)
class Play:
    """What a prompt asks for."""

    name: str
    params: Params

    @property
    def run(self) -> str:
        """Return who plays."""
        return self.params.get("run", "")

    @property
    def holds(self) -> bool:
        """Return whether it stops at HOLD."""
        return self.params.get("hold") == "yes"

    @property
    def delay_s(self) -> float:
        """Return the pause before each word."""
        return int(self.params.get("delay_ms", "0")) / 1000

    def turn(self, number: int) -> Turn:
        """Return the answer to request `number` of it; after the last turn there is little to say."""
        turns = SCRIPTS[self.name](self.params)
        return turns[number] if number < len(turns) else (Say("There is nothing left to do."),)


def find_play(texts: Iterable[str]) -> Play | None:
    """Return what the last tag in `texts` asks for, or None. A flattened conversation holds earlier ones too."""
    tags = [tag for text in texts for tag in _TAG.finditer(text)]
    if not tags or tags[-1][1] not in SCRIPTS:
        return None
    pairs = (pair.partition("=") for pair in tags[-1][2].split(",") if pair)
    return Play(tags[-1][1], {key.strip(): value.strip() for key, _, value in pairs})


def has_tag(text: str) -> bool:
    """Return whether a text names a script."""
    return find_play([text]) is not None


def tag(name: str, run: str, **params: object) -> str:
    """Return a prompt that plays a script."""
    pairs = ",".join(f"{key}={value}" for key, value in {"run": run, **params}.items())
    return f"Please do what the script says: play:{name}({pairs})"


# --- the scripts -----------------------------------------------------------------------------------------------


def _text(_: Params) -> list[Turn]:
    return [(Say(f"Two plus two {HOLD}is four. {HARD_TEXT}"),)]


def _tools(params: Params) -> list[Turn]:
    """Many calls: one after another, two at once (whose order is then chance; `at_once=no`), and one that fails."""
    count = int(params.get("count", "6"))
    calls: list[Turn] = [
        (Say(f"Step {number}."), Run(f"echo row {number} >> rows.txt; wc -l < rows.txt"))
        for number in range(1, count + 1)
    ]
    both: Turn = (Say(f"Now {HOLD}two more."), Run("cat hello.txt"), Run("cat rows.txt"))
    return [
        (Say("First a file."), Write("hello.txt", f"hello from the agent\n{HARD_TEXT}\n")),
        *calls,
        *([both[:2], both[2:]] if params.get("at_once") == "no" else [both]),
        (Run("cat no-such-file; exit 3"),),
        (Say(f"Done: {count} rows."),),
    ]


def _think(_: Params) -> list[Turn]:
    return [(Think("Let me think about this."), Say("I thought about it."), Run("echo thought")), (Say("Done."),)]


def _flaky(params: Params) -> list[Turn]:
    failing = Fail(int(params.get("status", "529")), int(params.get("times", "2")))
    return [(Say("Before."), Run("echo before")), (failing, Say(f"After {HOLD}the failures."))]


def _cut(params: Params) -> list[Turn]:
    cut = Cut(int(params.get("times", "1")))
    return [(Say("Before."), Run("echo before")), (Say("One two three four"), cut, Say(" five six."))]


def _fail(params: Params) -> list[Turn]:
    return [(Say(f"I begin {HOLD}at once."), Run("echo begun")), (Fail(int(params.get("status", "529"))),)]


def _big(params: Params) -> list[Turn]:
    size = int(params.get("size", str(BIG)))
    return [
        (Say("One very long line."), Write("big.txt", "0123456789abcdef" * (size // 16))),
        (Run("cat big.txt"),),
        (Say(f"It is {HOLD}written."),),
    ]


def _long(params: Params) -> list[Turn]:
    turns = int(params.get("turns", "10"))
    words = " ".join(f"word{number}" for number in range(int(params.get("words", "30"))))
    return [
        *((Say(f"Turn {number}: {words}."), Run(f"echo turn {number}")) for number in range(turns)),
        (Say("Done."),),
    ]


def _wait(_: Params) -> list[Turn]:
    """A command that only a kill ends; the marker says that it has begun."""
    return [(Say("A long command."), Run("touch begun; sleep 600")), (Say("It ended."),)]


def _shell(params: Params) -> list[Turn]:
    """One command, its blanks written as `+`."""
    return [(Run(params["cmd"].replace("+", " ")),), (Say("Done."),)]


def _lend(params: Params) -> list[Turn]:
    """Calls of `host_functions`: two of them stay within until a test lets them go."""
    run = params["run"]
    return [
        (Lend("slow_add", {"a": 40, "b": 2}),),
        (Lend("hold", {"name": f"{run}-once"}),),
        (Lend("hold_again", {"name": f"{run}-again"}),),
        (Lend("who", {}),),
        (Say("Done."),),
    ]


SCRIPTS: Mapping[str, Callable[[Params], list[Turn]]] = {
    "text": _text,
    "tools": _tools,
    "think": _think,
    "flaky": _flaky,
    "cut": _cut,
    "fail": _fail,
    "big": _big,
    "long": _long,
    "wait": _wait,
    "shell": _shell,
    "lend": _lend,
}
