"""The place of a mirror: names and contents, and the errors and silences of its driver."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from common.errors import PluginError
from common.process.clocks import breaking_off
from learner.storage import mirror_store
from learner.storage.mirror_store import MirrorStore
from tests.conftest import free_port


def test_files_come_back_until_they_are_removed(tmp_path: Path) -> None:
    store = MirrorStore(f"file://{tmp_path}/mirror")
    assert store.list_names("states") == []
    for name in ("b", "a"):
        store.write("states", name, name.encode())
    with store.open("states", "c", "wb") as (file, go_on):
        for part in (b"long", b"er"):
            file.write(part)
            go_on()
    assert store.list_names("states") == ["a", "b", "c"]
    assert [store.read("states", name) for name in "abc"] == [b"a", b"b", b"longer"]
    assert store.sent_bytes == 2, "whoever writes a large file counts its bytes"
    store.remove("states", ["a", "gone", "c"])
    assert store.list_names("states") == ["b"]
    with pytest.raises(FileNotFoundError):
        store.read("states", "a")


def test_a_place_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PluginError, match=r"storage.mirror: nowhere://x: .*; pip install 'crossborder\[mirror\]'"):
        MirrorStore("nowhere://x")


def test_a_driver_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(PluginError, match=r"storage.mirror: hdfs://host/run: .*; pip install 'crossborder\[mirror\]'"):
        MirrorStore("hdfs://host/run").list_names("states")


def test_a_place_whose_driver_cannot_connect_is_named() -> None:
    address = f"ftp://127.0.0.1:{free_port()}/runs"
    with pytest.raises(OSError, match=rf"{address}: ConnectionRefusedError: "):
        MirrorStore(address).list_names("states")


def read_in_parts(store: MirrorStore) -> None:
    with store.open("states", "hanging", "rb") as (file, _):
        file.read()


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.read("states", "hanging"),
        lambda store: store.write("states", "hanging", b"content"),
        read_in_parts,
    ],
    ids=["read", "write", "open"],
)
def test_a_place_whose_driver_gives_no_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(mirror_store, "breaking_off", lambda _: breaking_off(0.5))
    (tmp_path / "states").mkdir()
    os.mkfifo(tmp_path / "states" / "hanging")  # Its opening waits for somebody at its other end.
    store = MirrorStore(f"file://{tmp_path}")
    with pytest.raises(
        OSError, match=rf"file://{tmp_path}: BrokenOffError: expected an answer within 0.5 s, found none"
    ):
        call(store)
    assert store.has_hung


def test_a_driver_that_has_failed_connects_anew() -> None:
    class Connecting(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
        """A driver whose connection is broken for good after its first call."""

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if getattr(self, "is_broken", False):
                raise ConnectionResetError("the connection is broken")
            self.is_broken = True
            return super().ls(path, detail, **options)

    fsspec.register_implementation("connecting", Connecting)
    store = MirrorStore("connecting://test-mirror/anew")
    assert store.list_names("states") == []
    with pytest.raises(OSError, match="the connection is broken"):
        store.list_names("states")
    assert store.list_names("states") == []
