"""Token ids become hashes: whatever holds them, and with an error where there are none."""

import array
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_llm import ArgumentError, HashList, SequenceHash, hash_tokens
from support import environment

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=50)


class Tensor:
    """What speaks DLPack and nothing else, as torch tensors do."""

    def __init__(self, held: np.ndarray[Any, Any], *, versioned: bool = True) -> None:
        self.held = held
        self.versioned = versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.held.__dlpack_device__()

    def __dlpack__(self, **terms: Any) -> Any:
        if terms and not self.versioned:
            raise TypeError("no keywords in my time")
        return self.held.__dlpack__(**terms)


# --- what holds tokens ---


@settings(deadline=None)
@given(ids=tokens, page=st.integers(1, 9))
def test_every_holder_gives_the_same_hashes(ids: list[int], page: int) -> None:
    expected = hash_tokens(ids, page)
    wide = np.array(ids, dtype=np.int64)
    narrow = np.array(ids, dtype=np.uint32)
    holders: list[Any] = [
        tuple(ids),
        array.array("I", ids),
        narrow.data,
        narrow,
        wide,
        wide.astype(np.uint64),
        np.repeat(wide, 3)[::3],
        wide[::-1].copy()[::-1],
        Tensor(narrow),
        Tensor(wide[::-1].copy()[::-1]),
        Tensor(wide, versioned=False),
    ]
    assert [hash_tokens(holder, page) for holder in holders] == [expected] * len(holders)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("wrap", [np.asarray, Tensor])
def test_every_width_of_integer(dtype: str, wrap: Callable[[Any], Any]) -> None:
    assert hash_tokens(wrap(np.arange(32, dtype=dtype)), 8) == hash_tokens(range(32), 8)


@pytest.mark.parametrize(("module", "make"), [("torch", "tensor"), ("jax.numpy", "array")])
def test_other_libraries(module: str, make: str) -> None:
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    # In a process of its own: these libraries start threads, which other tests would fork.
    script = f"""
from {module} import {make} as make
from dynamo_llm import hash_tokens
assert hash_tokens(make([1, 2, 3, 4]), 2) == hash_tokens([1, 2, 3, 4], 2)
"""
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True)


@pytest.mark.parametrize("value", [-1, 2**32, 2**63, 2**70, -(2**70)])
@pytest.mark.parametrize("position", [0, 3])
def test_what_is_no_token_id_is_named_with_its_position(value: int, position: int) -> None:
    ids = [7] * 5
    ids[position] = value
    with pytest.raises(ArgumentError, match=rf"tokens\[{position}\] = {value}"):
        hash_tokens(ids, 1)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("wrap", [np.asarray, Tensor])
def test_negative_ids_in_arrays_are_named(dtype: str, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentError, match=r"tokens\[2\] = -5"):
        hash_tokens(wrap(np.array([1, 2, -5], dtype=dtype)), 1)


@pytest.mark.parametrize(
    "ids",
    [
        7,
        None,
        "text",
        b"bytes",
        bytearray(b"bytes"),
        {1, 2},
        {1: 2},
        iter([1]),
        object(),
        [1.5],
        ["1"],
        [None],
        [[1]],
        np.array([1.0]),
        np.array([True]),
        np.array([[1, 2]]),
        np.array(3),
        np.array([1, 2], dtype=">u4"),
        np.array([1, 2], dtype=">i8"),
        Tensor(np.array([1.0])),
        Tensor(np.array([[1]])),
        array.array("f", [1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_no_tokens_is_a_type_error(ids: Any) -> None:
    with pytest.raises(TypeError, match="tokens"):
        hash_tokens(ids, 1)


def test_an_array_across_words_is_refused_or_right() -> None:
    ids = np.frombuffer(b"x" + np.arange(4, dtype=np.uint32).tobytes(), dtype=np.uint32, offset=1)
    with pytest.raises(TypeError, match=r"tokens\.copy\(\)"):
        hash_tokens(ids, 2)
    assert hash_tokens(ids.copy(), 2) == hash_tokens(range(4), 2)


def test_numbers_of_numpy_are_numbers() -> None:
    ids = [np.int64(1), np.uint8(2), True]
    assert hash_tokens(ids, 3) == hash_tokens([1, 2, 1], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("page_size", [0, -1, 2**64, 2**70, -(2**70)])
def test_impossible_page_sizes(page_size: int) -> None:
    with pytest.raises(ArgumentError, match="page_size"):
        hash_tokens([1], page_size)


@pytest.mark.parametrize("page_size", [1.5, "2", None, []])
def test_page_sizes_that_are_no_numbers(page_size: Any) -> None:
    with pytest.raises(TypeError, match="page_size"):
        hash_tokens([1], page_size)


def test_a_page_larger_than_the_tokens_gives_nothing() -> None:
    assert len(hash_tokens([1, 2, 3], 2**63)) == 0


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"scheme": "md5"}, "scheme"),
        ({"salt": b"\xff"}, "salt"),
        ({"media": [(0, b"")]}, "media"),
        ({"media": [(-1, b"x")]}, r"media\[0\] position"),
        ({"media": [(2**70, b"x")]}, r"media\[0\] position"),
        ({"media": [(0, b"x")], "scheme": "kvbm"}, "media"),
    ],
)
def test_identities_that_cannot_be(more: dict[str, Any], field: str) -> None:
    with pytest.raises(ArgumentError, match=field):
        hash_tokens([1], 1, **more)


@pytest.mark.parametrize("media", [7, "text", [3], [(1,)], [(0, "digest")], [(1.5, b"x")]])
def test_media_of_the_wrong_type(media: Any) -> None:
    with pytest.raises(TypeError, match="media"):
        hash_tokens([1], 1, media=media)


def test_media_change_the_hashes_from_their_page_on() -> None:
    plain = hash_tokens(range(12), 4)
    image = hash_tokens(range(12), 4, media=[(5, b"digest")])
    assert [a == b for a, b in zip(plain, image, strict=True)] == [True, False, False]


def test_a_salt_is_the_same_as_text_and_as_bytes() -> None:
    assert hash_tokens([1], 1, "tenant") == hash_tokens([1], 1, b"tenant")
    assert hash_tokens([1], 1, "") == hash_tokens([1], 1)


def test_hashes_are_the_same_in_another_process() -> None:
    script = "import dynamo_llm; print(bytes(dynamo_llm.hash_tokens(range(64), 16)).hex())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(PYTHONHASHSEED="7"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == bytes(hash_tokens(range(64), 16)).hex()


# --- SequenceHash ---


@settings(deadline=None)
@given(value=st.integers(0, 2**128 - 1))
def test_a_hash_takes_back_all_its_forms(value: int) -> None:
    one = SequenceHash(value)
    assert int(one) == value
    assert bytes(one) == value.to_bytes(16, "little")
    assert SequenceHash(bytes(one)) == SequenceHash(one) == one
    assert int(str(one), 16) == value
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert hash(one) == hash(SequenceHash(value))
    assert one != value


@settings(deadline=None)
@given(length=st.sampled_from([8, 16, 32]), data=st.data())
def test_engine_hashes_keep_their_low_bits(length: int, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=length, max_size=length))
    assert int(SequenceHash.from_engine_hash(raw)) == int.from_bytes(raw, "big") % 2**128


@pytest.mark.parametrize("value", [-1, 2**128, 2**1000, b"", b"x" * 15, b"x" * 17])
def test_what_is_no_hash(value: Any) -> None:
    with pytest.raises(ArgumentError, match="value"):
        SequenceHash(value)


@pytest.mark.parametrize("value", [1.5, "ab", None, [1]])
def test_what_is_nothing_like_a_hash(value: Any) -> None:
    with pytest.raises(TypeError, match="value"):
        SequenceHash(value)


@pytest.mark.parametrize("length", [0, 1, 15, 33])
def test_engine_hashes_of_other_lengths(length: int) -> None:
    with pytest.raises(ArgumentError, match=str(length)):
        SequenceHash.from_engine_hash(b"x" * length)


# --- HashList ---


@settings(deadline=None)
@given(ids=tokens, cut=st.slices(50), again=st.slices(50), index=st.integers(-60, 60))
def test_a_hash_list_is_a_sequence(ids: list[int], cut: slice, again: slice, index: int) -> None:
    hashes = hash_tokens(ids, 1)
    model = [hashes[nth] for nth in range(len(ids))]
    assert list(hashes) == model
    assert list(hashes[cut]) == model[cut]
    assert list(hashes[cut][again]) == model[cut][again]
    assert hashes[cut] == HashList(model[cut])
    assert hash(hashes[cut]) == hash(HashList(model[cut]))
    assert pickle.loads(pickle.dumps(hashes[cut])) == hashes[cut]  # noqa: S301
    assert HashList.from_bytes(bytes(hashes[cut])) == hashes[cut]
    if -len(ids) <= index < len(ids):
        assert hashes[index] == model[index]
        assert hashes[index] in hashes
    else:
        with pytest.raises(IndexError, match="HashList index"):
            hashes[index]


def test_a_hash_list_takes_every_form() -> None:
    hashes = hash_tokens(range(4), 1)
    forms: list[Any] = [hashes, list(hashes), [int(h) for h in hashes], [bytes(h) for h in hashes]]
    assert [HashList(form) for form in forms] == [hashes] * 4
    assert len(HashList()) == len(HashList([])) == 0


@pytest.mark.parametrize("values", [[-1], [2**128], [b"short"], [1, 2, b"x" * 15]])
def test_the_position_of_what_is_no_hash_is_named(values: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"hashes\[{len(values) - 1}\]"):
        HashList(values)


@pytest.mark.parametrize("values", [7, "text", b"x" * 16, {1}, {1: 2}, [1.5], ["a"], [None]])
def test_what_holds_no_hashes(values: Any) -> None:
    with pytest.raises(TypeError, match="hashes"):
        HashList(values)


def test_bytes_that_are_no_hashes() -> None:
    with pytest.raises(ArgumentError, match="17"):
        HashList.from_bytes(b"x" * 17)


def test_equality_is_of_lists_with_lists() -> None:
    hashes = hash_tokens(range(2), 1)
    assert hashes != list(hashes)
    assert hashes != 7
    assert 7 not in hashes
