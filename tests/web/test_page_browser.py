"""The page as people use it, in headless Chromium, at a real server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_durable import Decision
from tests.web.browser import chromium, need_chromium
from tests.web.conftest import Site
from tests.web.web_processes import api_processes

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WAIT_SECONDS = 15


class Browser:
    """What a person does at the page."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def go(self, path: str) -> None:
        self.driver.get(self.address + path)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        return self.until(lambda: next(iter(self.all(selector)), None), selector)

    def until(self, look: Callable[[], Any], what: str = "") -> Any:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(
            self.driver, WAIT_SECONDS, 0.1, ignored_exceptions=[StaleElementReferenceException]
        )
        return waiting.until(lambda _: look(), what)

    def press(self, keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(keys).perform()

    def text(self, selector: str = "main") -> str:
        return str(self.one(selector).text)

    def log_in(self, secret: str) -> None:
        self.go("/login")
        self.one("#secret").send_keys(secret)
        self.one(".login button").click()
        self.until(lambda: self.driver.current_url.endswith("/") and self.all("nav"), "logged in")

    def picture(self, name: str) -> None:
        """Keep a picture for the docs, where it is asked for."""
        if os.environ.get("LANGGRAPH_DURABLE_PICTURES"):
            IMAGES.mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(IMAGES / f"{name}.png"))

    def complaints(self) -> list[str]:
        """Return what the browser refused or a script threw."""
        lines = [entry["message"] for entry in self.driver.get_log("browser")]
        return [line for line in lines if not re.search(r"status of 4(09|22)", line)]


@pytest.fixture
def served(site: Site) -> Iterator[str]:
    need_chromium()
    with api_processes(site.durable.url) as (address,):
        yield address


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url  # what a browser sees is the same on both


@pytest.mark.timeout(300)
def test_a_supervisor_decides_by_mouse_and_keyboard_without_a_reload(
    site: Site, served: str, tmp_path: Path
) -> None:
    secret = site.secret("supervisor")
    first, second, third = (
        site.parked(ticket=f"Order {i} came broken", amounts=[amount])
        for i, amount in enumerate((4_900, 1_250, 80_000))
    )
    with chromium(tmp_path) as driver:
        page = Browser(driver, served)
        page.log_in(secret)
        page.until(lambda: len(page.all(".card.open")) == 3)
        page.until(lambda: page.all("#live.on"))
        page.picture("inbox")
        driver.execute_script("window.stillHere = true")

        page.press("j")
        page.until(lambda: page.all(".card.selected"))
        page.press("a")
        page.until(lambda: "supervisor of t_a" in page.text(".card.decided"))

        page.until(lambda: "1250" in page.text(".card.open.selected"))
        page.press("r")
        page.until(lambda: driver.switch_to.active_element.get_attribute("name") == "reason")
        page.press("jar: paid already")  # letters are letters here, not commands
        page.one(".card.selected details[open] button").click()
        page.until(lambda: len(page.all(".card.decided")) == 2)
        assert "jar: paid already" in page.text()

        page.until(lambda: "80000" in page.text(".card.open.selected"))
        page.press("e")
        field = page.one(".card.selected details[open] textarea")
        field.clear()
        field.send_keys('{"amount_cents": "much"}')
        page.one(".card.selected details[open] button").click()
        page.until(lambda: "amount_cents" in page.text(".card.open .problem"))
        field = page.one(".card.open details[open] textarea")
        assert field.get_attribute("value") == '{"amount_cents": "much"}'  # nothing typed is lost
        page.picture("inbox-edit")
        field.clear()
        field.send_keys('{"amount_cents": 60000}')
        page.one(".card.open details[open] button").click()
        page.until(lambda: len(page.all(".card.decided")) == 3)
        page.picture("inbox-decided")

        newcomer = site.parked(ticket="Order 9", amounts=[77])
        page.until(lambda: "77" in page.text(".card.open"))
        site.durable.decide(site.question(newcomer), Decision.reject("tom", "not ours"))
        page.until(lambda: not page.all(".card.open") and "tom" in page.text())
        assert driver.execute_script("return window.stillHere") is True
        assert page.complaints() == []

    site.work()
    assert sorted(amount for _, amount in site.ledger) == [4_900, 60_000]
    assert {key.split(":")[0] for key, _ in site.ledger} == {first, third}
    decided = [e for e in site.durable.events(second) if e.type == "question_decided"]
    assert (decided[0].actor, decided[0].data["reason"]) == (
        "supervisor of t_a",
        "jar: paid already",
    )


@pytest.mark.timeout(300)
def test_an_operator_follows_a_run_and_cancels_another(
    site: Site, served: str, tmp_path: Path
) -> None:
    made = site.durable.keys.create(tenant="t_a", roles=["operator", "supervisor"], name="olga")
    run_id = site.parked(ticket="<script>alert(1)</script>", amounts=[4_900, 1_250])
    other = site.parked()
    allow = {"verdict": "allow", "tool": "create_refund"}
    small = {"when": [{"argument": "amount_cents", "at_most": 5000}]}
    asked = [site.question(site.parked()) for _ in range(2)]
    for question, rule in zip(asked, (small, {"agent": "refund"}), strict=True):
        site.durable.decide(question, Decision.approve("mei", rules=[allow | rule]))
    for i in range(3):
        site.durable.submit("echo", i, tenant="t_a")
    site.durable.submit("fails", tenant="t_a")
    site.work()
    with chromium(tmp_path) as driver:
        page = Browser(driver, served)
        page.log_in(made.secret)
        page.go("/runs")
        page.until(lambda: len(page.all(".runs tbody tr")) == 8)
        page.until(lambda: page.all("#live.on"))
        page.picture("runs")
        site.durable.submit("echo", 4, tenant="t_a")
        page.until(lambda: len(page.all(".runs tbody tr")) == 9)
        site.work()

        page.go(f"/runs/{run_id}")
        page.until(lambda: page.all("#live.on"))
        assert len(page.all(".card.open")) == 2
        assert "<script>alert(1)</script>" in page.text("[data-fresh=values]")
        driver.execute_script("window.stillHere = true")
        together = page.one("[data-fresh=together] button")
        together.click()
        together = page.one("[data-fresh=together] button")
        together.click()  # a second press: it was asked whether that is meant
        page.until(lambda: not page.all(".card.open"))
        site.work()
        page.until(lambda: page.all("h1 .status.succeeded"))
        assert "olga" in page.text(".timeline")
        assert "refund:1" in page.text(".timeline")
        page.picture("run")

        page.go("/rules")
        page.until(lambda: len(page.all(".rules form")) == 2)
        page.picture("rules")
        for _ in range(2):  # pressed again: it is meant
            page.one(".rules form button").click()
        page.until(lambda: len(page.all(".rules form")) == 1)
        assert "olga" in page.text(".rules")

        page.go(f"/questions/{site.question(other)}")
        page.one(".card")
        page.all(".card summary")[-1].click()
        page.one(".card input[name=to]").send_keys("finance")
        page.one(".card form[action$='/delegate'] button").click()
        page.until(lambda: "finance" in page.text(".card .decided"))
        page.go(f"/runs/{other}")
        for _ in range(2):
            page.one("form[action$='/cancel'] button").click()
        page.until(lambda: page.all("h1 .status.cancelled"))
        assert page.complaints() == []
    assert site.durable.get(other).status.value == "cancelled"
    assert sorted(rule.is_live for rule in site.durable.rules("t_a")) == [False, True]


@pytest.mark.timeout(300)
def test_on_a_phone_and_in_chinese(site: Site, served: str, tmp_path: Path) -> None:
    secret = site.secret("supervisor")
    site.parked(amounts=[4_900])
    asking = site.parked("ask", ticket="订单 7 收到时已损坏")
    with chromium(tmp_path, width=390, language="zh-CN") as driver:
        page = Browser(driver, served)
        page.log_in(secret)
        page.until(lambda: len(page.all(".card.open")) == 2)
        assert "待办" in page.text()
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 390
        for button in page.all(".card .choices button, .card summary"):
            if button.is_displayed():
                assert button.size["height"] >= 40
                assert button.size["width"] > 250
        page.picture("inbox-phone-zh")
        answer = page.one(f".card.open[data-question='{site.question(asking)}']")
        answer.find_element("css selector", "summary[data-key=n]").click()
        field = answer.find_element("css selector", "textarea[name=value]")
        field.send_keys("好的")
        answer.find_element("css selector", "button[value=respond]").click()
        page.until(lambda: page.all(".card.decided"))
        page.one(".languages a[lang=en]").click()
        page.until(lambda: "Inbox" in page.text())
        assert page.complaints() == []
    site.work()
    assert site.durable.get(asking).output["answer"] == "好的"
