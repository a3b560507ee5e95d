"""One Chromium for all browser tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import lab


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium, started once; without one the tests fail with the line to type."""
    try:
        lab.find_chromium()
    except FileNotFoundError as missing:
        pytest.fail(str(missing), pytrace=False)
    with lab.open_chromium() as browser:
        yield browser
