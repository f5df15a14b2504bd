"""The place of a mirror, reached by a driver of fsspec: each call has a deadline, and its errors are OSErrors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from common.errors import PluginError
from common.process.clocks import BrokenOffError, breaking_off

ANSWER_SECONDS: Final = 30.0
"""A driver that has not listed, read or written one small thing by then hangs: it is broken off."""
PART_SECONDS: Final = 600.0
"""The same for each part of an object: drivers send up to 50 MB at once."""


class MirrorStore:
    """Directories of named files, at this URL.

    ``read`` and ``open`` raise FileNotFoundError if the file is not there. Every method raises OSError if the place
    cannot be reached or has no room, and PluginError if the driver imports a package only when it connects, and does
    not find it.

    Raises:
        PluginError: the driver of such places is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent_bytes = 0
        self.has_hung = False
        """Whether a call was broken off: a thread of the driver may go on with it."""
        try:
            from fsspec import get_filesystem_class  # noqa: PLC0415 - needs crossborder[mirror]

            self._root = str(get_filesystem_class(url.partition("://")[0])._strip_protocol(url))
        except (ImportError, ValueError) as error:
            raise self._not_installed(error) from error

    @cached_property
    def _driver(self) -> Any:
        """Some drivers, as that of sftp, connect when they are made."""
        from fsspec.core import url_to_fs  # noqa: PLC0415 - the same

        options = {"auto_mkdir": True} if self.url.startswith(("file:", "local:")) else {}
        try:
            return url_to_fs(self.url, skip_instance_cache=True, **options)[0]
        except ImportError as error:
            raise self._not_installed(error) from error

    def _not_installed(self, error: Exception) -> PluginError:
        return PluginError(f"storage.mirror: {self.url}: {error}; pip install 'crossborder[mirror]'")

    def _path(self, directory: str, name: str) -> str:
        return f"{self._root}/{directory}/{name}"

    @contextmanager
    def _reaching(self, seconds: float = ANSWER_SECONDS) -> Iterator[Callable[[], None]]:
        """Raise an OSError in the place of whatever error a driver raises, and if it gives no answer.

        Gives what is called when the driver has done a part of its work: the next part has as many seconds again.
        """
        try:
            with breaking_off(seconds) as go_on:
                yield go_on
        except (FileNotFoundError, PluginError):
            raise
        except Exception as error:
            self.has_hung |= isinstance(error, BrokenOffError)
            # The next call connects anew: the connection may be the one that is broken.
            self.__dict__.pop("_driver", None)
            raise OSError(f"{self.url}: {type(error).__name__}: {error}") from error

    def list_names(self, directory: str) -> list[str]:
        """The names in a directory, sorted, as the place has them now; none if there is no such directory."""
        with self._reaching():
            self._driver.invalidate_cache()
            try:
                found = self._driver.ls(f"{self._root}/{directory}", detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def read(self, directory: str, name: str) -> bytes:
        """The content of a small file."""
        with self._reaching():
            content: bytes = self._driver.cat_file(self._path(directory, name))
            return content

    def write(self, directory: str, name: str, content: bytes) -> None:
        """Write a small file."""
        with self._reaching():
            self._driver.pipe_file(self._path(directory, name), content)
        self.sent_bytes += len(content)

    @contextmanager
    def open(self, directory: str, name: str, mode: str) -> Iterator[tuple[Any, Callable[[], None]]]:
        """Open a large file to read (``rb``) or to write it (``wb``); call the second value after each part."""
        with self._reaching(PART_SECONDS) as go_on, self._driver.open(self._path(directory, name), mode) as file:
            yield file, go_on

    def remove(self, directory: str, names: list[str]) -> None:
        """Remove files; those that are not there any more are passed over."""
        for name in names:
            with self._reaching():
                try:
                    self._driver.rm_file(self._path(directory, name))
                except FileNotFoundError:
                    continue
