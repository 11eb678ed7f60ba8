"""The benchmark measures every row it promises, writes the form it promises, and its client loses nothing."""

from __future__ import annotations

import json

import pytest
from containers import line_times
from hypothesis import given
from hypothesis import strategies as st
from measurements import GROUPS, choose
from replay_agent import stamped
from rows import ROWS, Figure, as_json, as_text, quantile, spread
from sse_client import BenchError, ChunkedDecoder, Stream

# The rows of the plan's table, each with its target and which way is better.
PROMISED = {
    "post_first_byte_p50_ms": (15, "lower"),
    "post_first_text_p50_ms": (150, "lower"),
    "delivery_20_p50_ms": (6, "lower"),
    "delivery_20_p99_ms": (30, "lower"),
    "delivery_200_p50_ms": (5, "lower"),
    "delivery_200_p99_ms": (30, "lower"),
    "takeover_p50_ms": (200, "lower"),
    "takeover_p99_ms": (800, "lower"),
    "takeover_cold_p50_ms": (500, "lower"),
    "takeover_cold_p99_ms": (1500, "lower"),
    "takeover_66k_ms": (600, "lower"),
    "takeover_200_files_ms": (300, "lower"),
    "docker_first_chunk_ms": (1500, "lower"),
    "docker_follow_p50_ms": (5, "lower"),
    "docker_follow_p99_ms": (25, "lower"),
    "docker_takeover_p50_ms": (500, "lower"),
    "docker_cancel_ms": (1000, "lower"),
    "claude_first_chunk_ms": (2500, "lower"),
    "cluster_replace_per_run_ms": (1000, "lower"),
    "takeover_frozen_p50_ms": (3500, "lower"),
    "takeover_frozen_p99_ms": (4000, "lower"),
    "takeover_node_p50_ms": (3500, "lower"),
    "takeover_node_p99_ms": (4000, "lower"),
    "takeover_cut_p50_ms": (3500, "lower"),
    "takeover_cut_p99_ms": (4000, "lower"),
    "takeover_20_at_once_ms": (8000, "lower"),
    "takeover_stored_1k_ms": (200, "lower"),
    "takeover_stored_10k_ms": (200, "lower"),
    "takeover_stored_100k_ms": (200, "lower"),
    "takeover_stored_growth": (1.2, "lower"),
    "takeover_cpu_s": (1.0, "lower"),
    "one_run_chunks_per_s": (60_000, "higher"),
    "twenty_runs_chunks_per_s": (60_000, "higher"),
    "translate_lines_per_s": (400_000, "higher"),
    "align_chunks_per_s": (5_000_000, "higher"),
    "align_fingerprint_chunks_per_s": (300_000, "higher"),
    "append_per_s_sqlite_1": (500, "higher"),
    "append_per_s_sqlite_10": (4_000, "higher"),
    "append_per_s_sqlite_100": (8_000, "higher"),
    "append_per_s_postgres_1": (300, "higher"),
    "append_per_s_postgres_10": (2_000, "higher"),
    "append_per_s_postgres_100": (5_000, "higher"),
    "run_actor_uss_mb": (60, "lower"),
    "viewers200_p99_ms": (100, "lower"),
    "stale_appends": (0, "lower"),
}


def test_every_promised_row_is_there_with_its_target() -> None:
    assert {row.name: (row.target, row.better) for row in ROWS} == PROMISED


def test_every_row_has_one_measurement() -> None:
    measured = [name for group in GROUPS for name in group.rows]
    assert sorted(measured) == sorted(PROMISED)


def test_only_brings_the_rows_that_are_measured_together() -> None:
    (group,) = choose(["takeover_p99_ms"])
    assert group.rows == ("takeover_p50_ms", "takeover_p99_ms")
    assert choose([]) == list(GROUPS)
    with pytest.raises(SystemExit, match="no row speed"):
        choose(["speed"])


def test_the_json_has_the_documented_form() -> None:
    figures = {"takeover_p50_ms": Figure(77.12345, 20, 1)}
    made = json.loads(json.dumps(as_json(ROWS, figures)))
    assert {frozenset(row) for row in made} == {
        frozenset({"name", "value", "unit", "better", "target", "peer", "trials", "left_out"})
    }
    by_name = {row["name"]: row for row in made}
    assert by_name["takeover_p50_ms"] == {
        "name": "takeover_p50_ms",
        "value": 77.123,
        "unit": "ms",
        "better": "lower",
        "target": 200,
        "peer": 383,
        "trials": 20,
        "left_out": 1,
    }
    assert by_name["stale_appends"]["value"] is None


def test_the_table_says_what_was_met() -> None:
    figures = {"takeover_p50_ms": Figure(77, 20), "takeover_p99_ms": Figure(900, 20)}
    lines = {line.split()[0]: line for line in as_text(ROWS, figures).split("\n")}
    assert lines["takeover_p50_ms"].endswith(" met")
    assert lines["takeover_p99_ms"].endswith(" MISSED")
    assert lines["stale_appends"].endswith("not measured")


def test_quantiles_are_values_that_were_seen() -> None:
    values = list(range(1, 101))
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7], 0.99)) == (50, 99, 7)
    assert spread("x", [2, 1])["x_p50_ms"] == Figure(1, 2)


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(1, 30))
def test_the_client_decodes_a_chunked_body_however_it_is_cut(chunks: list[bytes], size: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    decoder = ChunkedDecoder()
    body = b"".join(decoder.feed(wire[at : at + size]) for at in range(0, len(wire), size))
    assert body == b"".join(chunks)
    assert decoder.done


def test_an_event_comes_when_its_last_byte_does() -> None:
    stream = Stream(b"")
    stream.pieces = [
        (10, b'id: 0000000000000000_0000000000000001\ndata: {"a":1}\n\n: \n\nid: 0_00'),
        (20, b'02\ndata: {"delta":"@@4:7000@@ x"}\n'),
        (30, b"\n"),
    ]
    first, second = stream.events()
    assert (first.came_ns, first.position, first.data, first.number) == (10, 1, b'{"a":1}', None)
    assert (second.came_ns, second.position, second.number, second.written_ns) == (30, 2, 4, 7_000_000)


def test_the_agent_writes_the_time_into_the_first_stamp() -> None:
    data = stamped(b'{"text":"@@0000042@@a"}\n{"text":"@@0000043@@b"}\n')
    stream = Stream(b"")
    stream.pieces = [(1, b"id: 0_1\ndata: " + data.split(b"\n")[0] + b"\n\n")]
    (event,) = stream.events()
    assert event.number == 42
    assert event.written_ns is not None
    assert data.endswith(b'{"text":"@@0000043@@b"}\n')
    assert stamped(b"no stamp") == b"no stamp"


def test_each_line_of_a_container_has_its_time_or_there_is_no_figure() -> None:
    stream = Stream(b"")
    stamps = (b"@@0:1700000000.000500@@", b"@@1:1700000000,050000@@")
    texts = [b'id: 0_%d\ndata: {"delta":"%b\\n"}\n\n' % (at, stamp) for at, stamp in enumerate(stamps, 1)]
    began_ns = 1_700_000_000 * 10**9
    stream.pieces = [(began_ns + 2_500_000, texts[0]), (began_ns + 53_000_000, texts[1])]
    assert line_times(stream, 2) == [2.0, 3.0]
    with pytest.raises(BenchError, match="2 of 3 lines"):
        line_times(stream, 3)
    stream.pieces.reverse()
    with pytest.raises(BenchError):
        line_times(stream, 2)
