"""A headless Chromium for tests of the page, or a reason why there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HOW_TO_GET_IT = (
    "the page is tested in Chromium: apt-get install chromium chromium-driver fonts-noto-cjk, and "
    "pip install selenium"
)


def need_chromium() -> None:
    """Skip where there is no Chromium, unless it is required (CI sets the variable)."""
    missing = not (shutil.which("chromium") and shutil.which("chromedriver"))
    try:
        import selenium  # noqa: F401
    except ImportError:
        missing = True
    if missing:
        if os.environ.get("LANGGRAPH_DURABLE_TEST_CHROMIUM") == "required":
            pytest.fail(HOW_TO_GET_IT)
        pytest.skip(HOW_TO_GET_IT)


@contextmanager
def chromium(folder: Path, *, width: int = 1200, language: str = "en") -> Iterator[Any]:
    """Start a browser with a fresh profile."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--hide-scrollbars",
        f"--lang={language}",
        f"--accept-lang={language}",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},900",
    ):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"intl.accept_languages": language})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        if width < 500:  # a window can't be that narrow; the emulated device can
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True},
            )
        yield driver
    finally:
        driver.quit()
