"""Names of files: injective, bounded, harmless, decoded only when certain (contract 7.1; scenarios 155-158, 173)."""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.ids import LOCAL_OWNER, owner_and_thread, thread_key
from runtime.core.names import (
    MAX_NAME,
    Flaw,
    decode_journal_name,
    decode_name,
    encode_name,
    folder_name,
    journal_name,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "names.tsv"

ids = st.one_of(st.text(min_size=1, max_size=12), st.text("_.-~:aA0/", min_size=1, max_size=250))
ADVERSARIAL = [
    *("a b", "a_b", "a_20b", "a/b", "a_2fb", "_", "__", "_5f", "_5f5f", "-", ".", "..", "...", "a;b", "a$(b)", "*"),
    *(
        "a\nb",
        "a\x00b",
        "é",
        "e\u0301",
        "_c3_a9",
        "CON",
        "con",
        "_43_4f_4e",
        "CON.",
        "COM1",
        "COM10",
        "LPT0",
        "nul",
        "~",
    ),
]


def golden() -> list[tuple[str, str]]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return [(name, text) for name, text in (line.split("\t") for line in lines)]


@pytest.mark.parametrize(("name", "text"), golden())
def test_names_are_those_of_the_golden_file(name: str, text: str) -> None:
    assert encode_name(text) == name
    assert decode_name(name) == text


def test_158_a_long_id_keeps_its_start_and_ends_in_its_hash() -> None:
    assert encode_name("x" * 201) == "x" * 183 + "-84a0678c90937f5d"
    assert encode_name("x" * 200) == "x" * 200


def test_155_a_journal_name_is_a_function_of_the_run_id_alone() -> None:
    assert journal_name("run-123") == journal_name("run-123") == "run-123.ndjson"
    assert journal_name("..") == "...ndjson"
    assert journal_name("a/b c;d") == "a_2fb_20c_3bd.ndjson"


@pytest.mark.parametrize("make", [encode_name, folder_name, journal_name])
@pytest.mark.parametrize("text", ["", "\ud800"])
def test_155_a_text_without_a_name_is_refused(make: type, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the class is the promise
        make(text)


@pytest.mark.parametrize("make", [encode_name, folder_name, journal_name])
def test_156_no_two_of_an_adversarial_set_share_a_name(make: type) -> None:
    names = [str(make(text)) for text in ADVERSARIAL]
    assert len(set(names)) == len(ADVERSARIAL)


@given(ids, ids)
def test_156_two_texts_share_a_name_only_if_they_are_one(left: str, right: str) -> None:
    assert (encode_name(left) == encode_name(right)) is (left == right)
    assert (folder_name(left) == folder_name(right)) is (left == right)


def test_157_device_names_are_escaped_on_an_exact_match_only() -> None:
    assert encode_name("CON") == "_43_4f_4e"
    assert encode_name("com1") == "_63_6f_6d_31"
    for text in ("CONX", "XCON", "COM0", "COM10", "LPT", "com1.txt", "CON."):
        assert encode_name(text) == text


def test_158_long_ids_are_bounded_and_distinct() -> None:
    texts = [prefix * length + tail for prefix in ("x", ":") for length in (201, 400) for tail in ("a", "b", "")]
    names = [encode_name(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert all(len(name) == MAX_NAME for name in names)


@pytest.mark.parametrize("long", ["x" * 201, "a" * 42 + ":" * 86])
def test_156_a_text_that_spells_the_name_of_a_long_one_has_another(long: str) -> None:
    name = encode_name(long)
    spelt = name.replace("_3a", ":")
    assert "_" not in spelt
    assert encode_name(spelt) != name
    assert len(encode_name(spelt)) == MAX_NAME


@given(ids)
def test_a_name_is_harmless_and_bounded(text: str) -> None:
    for name in (encode_name(text), folder_name(text)):
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name)
    assert folder_name(text) not in {".", ".."}


@given(ids)
def test_173_a_name_decodes_to_its_text_or_says_that_it_is_truncated(text: str) -> None:
    plain = "".join(
        character if re.match(r"[A-Za-z0-9.-]", character) else "_xx" * len(character.encode()) for character in text
    )
    for make in (encode_name, folder_name):
        name = make(text)
        assert decode_name(name) == (Flaw.TRUNCATED if len(plain) > MAX_NAME else text)
    assert decode_journal_name(journal_name(text)) == decode_name(encode_name(text))


def test_173_decoding_gives_the_exact_string() -> None:
    assert decode_name("_ef_bf_bd") == "\ufffd"
    assert decode_name("_c3_a9") == "é"
    assert decode_name("_ed_a0_80") == Flaw.MALFORMED


def test_173_truncated_names_are_refused_and_look_alikes_too() -> None:
    assert decode_journal_name(journal_name("x" * 300)) == Flaw.TRUNCATED
    assert decode_name("y" * 183 + "-0123456789abcdef") == Flaw.TRUNCATED
    assert decode_name("x" * 201) == Flaw.TRUNCATED


@pytest.mark.parametrize("text", ["x" * 200, "y" * 183 + "-0123456789ABCDEF", "y" * 182 + "-0123456789abcdef0"])
def test_173_exactly_200_characters_without_a_hash_decode(text: str) -> None:
    assert decode_name(text) == text


@pytest.mark.parametrize("name", ["_", "a_", "_2", "_2g", "a_zz", "_ 2f", "_+1", "_c3", "_ff", "_c0_80"])
def test_173_malformed_escapes_and_invalid_utf8_are_refused(name: str) -> None:
    assert decode_name(name) == Flaw.MALFORMED


def test_173_upper_case_hex_decodes() -> None:
    assert decode_name("_2F_2f") == "//"


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a b", "a:b", "é", "a\n", "\n", "a*"])
def test_173_foreign_characters_and_separators_are_refused(name: str) -> None:
    assert decode_name(name) == Flaw.MALFORMED


@pytest.mark.parametrize("name", ["a", "a.txt", "a.ndjson.gz", "ndjson", ".ndjson", ".err", "", "a.NDJSON"])
def test_173_a_missing_or_unknown_extension_is_refused(name: str) -> None:
    assert decode_journal_name(name) == Flaw.MALFORMED


def test_173_journal_and_stderr_decode_to_the_same_run() -> None:
    assert decode_journal_name("a_2fb.ndjson") == decode_journal_name("a_2fb.err") == "a/b"


@pytest.mark.parametrize("text", ["CON", "lpt9", ".", "..", "a.ndjson", "a.err"])
def test_173_device_and_dot_names_decode_to_store_keys(text: str) -> None:
    assert decode_journal_name(journal_name(text)) == text
    assert decode_name(folder_name(text)) == text


def test_173_decoding_is_injective_on_the_names_that_we_make() -> None:
    decoded = [decode_name(encode_name(text)) for text in ADVERSARIAL]
    assert decoded == ADVERSARIAL


def test_the_hash_of_a_long_name_is_over_the_whole_text() -> None:
    for left, right in itertools.pairwise([":" * 128 + str(n) for n in range(4)]):
        assert encode_name(left) != encode_name(right)
    assert encode_name(":" * 128).endswith(hashlib.sha256(b":" * 128).hexdigest()[:16])


def test_a_threads_key_is_its_id_for_the_one_owner_of_before_and_other_for_each_owner_else() -> None:
    assert thread_key(LOCAL_OWNER, "t-1") == "t-1"
    keys = [thread_key(owner, thread) for owner in (LOCAL_OWNER, "a", "a/b", "b") for thread in ("t-1", "b", "a")]
    assert len({folder_name(key) for key in keys}) == len(keys)
    assert [owner_and_thread(key) for key in keys[3:9]] == [
        (owner, thread) for owner in ("a", "a/b") for thread in ("t-1", "b", "a")
    ]
    assert owner_and_thread("t-1") == (LOCAL_OWNER, "t-1")
