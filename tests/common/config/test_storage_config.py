"""Settings of the mirror."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from common.config.storage_config import StorageConfig


def test_acknowledgements_can_wait_only_for_a_mirror_that_there_is() -> None:
    with pytest.raises(ValidationError, match=r"acknowledge: mirrored needs storage.mirror"):
        StorageConfig(acknowledge="mirrored")
    assert StorageConfig(acknowledge="mirrored", mirror="s3://bucket/run").mirror_seconds == 5.0


@pytest.mark.parametrize("place", ["/mnt/share", "s3:bucket", "bucket", ""])
def test_a_mirror_is_named_by_a_url(place: str) -> None:
    with pytest.raises(ValidationError, match="mirror"):
        StorageConfig(mirror=place)
