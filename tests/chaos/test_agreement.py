from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from safetensors import SafetensorError
from safetensors.numpy import load

from common.wire.large_field import Request, parse_chunk
from common.wire.pb import crossborder_pb2 as pb
from common.wire.tensor_file import read_tensors
from tests.chaos.agreement import compare_readers


def test_our_readers_take_nothing_that_protobuf_and_safetensors_read_otherwise() -> None:
    outcomes = compare_readers(10_000, seed=1)["outcomes"]
    assert len(outcomes) == 3
    assert all(min(counts.values()) > 140 for counts in outcomes.values())


@pytest.mark.parametrize("message", ["aa8080808080808080000100", "2a8180808080808080000000"])
def test_a_payload_that_protobuf_does_not_read_is_refused(message: str) -> None:
    with pytest.raises(DecodeError):
        pb.PushItemsRequest.FromString(bytes.fromhex(message))
    with pytest.raises(DecodeError, match="expected fields of a message"):
        Request.parse(bytes.fromhex(message))


def test_a_second_large_field_that_is_empty_is_refused() -> None:
    """Protobuf would take the second, and we the first."""
    message = pb.GetModelResponse(data=b"data").SerializeToString() + b"\x32\x00"
    assert pb.GetModelResponse.FromString(message).data == b""
    with pytest.raises(ValueError, match="expected the large field once"):
        parse_chunk(message)


EMPTY = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


@pytest.mark.parametrize(
    "header",
    [
        b'{"w":' + EMPTY.replace("[0,0]", "[0,false]").encode() + b"}",
        b'{"w":' + EMPTY.replace('"shape":[0]', '"shape":[-1]').encode() + b"}",
        b'{"w":' + EMPTY.replace("[0,0]", "[0,-0]").encode() + b"}",
        b'{"\\ud800":' + EMPTY.encode() + b"}",
        b'{"__metadata__":{"made":1}}',
        "{}".encode("utf-16"),
    ],
)
def test_a_header_that_safetensors_does_not_read_is_refused(header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header
    with pytest.raises(SafetensorError):
        load(data)
    with pytest.raises(ValueError, match="not a safetensors file"):
        read_tensors(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("header", [f'{{"w":{EMPTY},"w":{EMPTY}}}', " {}"])
def test_a_header_that_the_format_forbids_is_refused_although_safetensors_reads_it(header: str) -> None:
    data = len(header).to_bytes(8, "little") + header.encode()
    with pytest.raises(ValueError, match=r"expected each name once|begins with"):
        read_tensors(np.frombuffer(data, np.uint8))


def test_bytes_of_no_tensor_are_refused() -> None:
    header = b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}'
    for data in (b"1234", b"123"):
        with pytest.raises(ValueError, match="expected tensors one after another"):
            read_tensors(np.frombuffer(len(header).to_bytes(8, "little") + header + data, np.uint8))
    header = header.replace(b"[1,3]", b"[0,2]")
    with pytest.raises(ValueError, match="expected 2 bytes of tensors, found 3"):
        read_tensors(np.frombuffer(len(header).to_bytes(8, "little") + header + b"123", np.uint8))
