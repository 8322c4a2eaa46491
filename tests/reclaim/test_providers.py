"""What each provider's metadata service says, and what is made of it. The services are real HTTP servers."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest

from jupyter_gpuckpt.daemon.reclaim import aws as aws_source
from jupyter_gpuckpt.daemon.reclaim import azure as azure_source
from jupyter_gpuckpt.daemon.reclaim import endpoints, notice_watch, polling
from jupyter_gpuckpt.daemon.reclaim import gcp as gcp_source
from jupyter_gpuckpt.wire.reclaim_records import NoticeKind
from tests.reclaim import doubles
from tests.reclaim.conftest import eventually
from tests.reclaim.doubles import SILENCE


def rounds(double, path, count=3):
    """Wait until a path was asked for so many more times."""
    before = double.count(path)
    eventually(lambda: double.count(path) >= before + count)


# ---- which machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, "aws"),
        ({"sys_vendor": "Xen", "board_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Google", "product_name": "Eve"}, "none"),
        ({"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "none"),
        ({}, "none"),
    ],
)
def test_a_machine_is_known_by_its_firmware(tmp_path, facts, expected):
    for name, text in facts.items():
        (tmp_path / name).write_text(text)
    assert notice_watch.provider({}, tmp_path) == expected


def test_the_environment_decides_which_machine_it_is(tmp_path):
    (tmp_path / "sys_vendor").write_text("Amazon EC2")
    named = {"JUPYTER_GPUCKPT_RECLAIM_PROVIDER": "none"}
    assert notice_watch.provider(named, tmp_path) == "none"
    named = {"JUPYTER_GPUCKPT_RECLAIM_PROVIDER": "a typing error"}
    assert notice_watch.provider(named, tmp_path) == "aws"


# ---- Amazon ----------------------------------------------------------------------------------------------------------


def test_a_spot_instance_is_taken(aws, read, left):
    found = read(aws_source, aws)
    rounds(aws, aws.SPOT)
    assert found.notices == []
    aws.announce(120)
    (notice,) = found.until(1)
    assert notice.kind is NoticeKind.RECLAIM
    assert not notice.disk_survives
    assert 115 < left(notice) < 122
    rounds(aws, aws.SPOT)
    found.until(1)  # it is told once
    assert aws.count(aws.TOKEN) == 1


@pytest.mark.parametrize(("action", "count"), [("stop", 1), ("hibernate", 0)])
def test_a_stop_keeps_the_disk_and_hibernation_all_of_it(aws, read, action, count):
    aws.announce(120, action)
    found = read(aws_source, aws)
    rounds(aws, aws.SPOT)
    assert [one.disk_survives for one in found.until(count)] == [True] * count


def test_a_notice_is_withdrawn_and_another_comes(aws, read):
    aws.announce(120)
    found = read(aws_source, aws)
    (first,) = found.until(1)
    del aws.values[aws.SPOT]
    withdrawn = found.until(2)[1]
    assert (withdrawn.id, withdrawn.withdrawn) == (first.id, True)
    aws.announce(60)
    second = found.until(3)[2]
    assert second.id != first.id
    assert not second.withdrawn


def test_a_token_that_is_no_longer_valid_is_renewed(aws, read):
    found = read(aws_source, aws)
    rounds(aws, aws.SPOT)
    aws.token = "second"
    aws.announce(120)
    found.until(1)
    assert aws.count(aws.TOKEN) >= 2


def test_a_rebalance_recommendation_has_no_deadline(aws, read):
    aws.values[aws.REBALANCE] = '{"noticeTime":"2020-10-16T19:18:24Z"}'
    (notice,) = read(aws_source, aws).until(1)
    assert (notice.kind, notice.deadline) == (NoticeKind.REBALANCE, None)


def test_scheduled_events_that_are_active_count(aws, read, left):
    def event(code, seconds, state="active", **more):
        when = formatdate(aws.date(seconds), usegmt=True)
        return {"Code": code, "NotBefore": when, "State": state, "EventId": code, **more}

    aws.values[aws.MAINTENANCE] = json.dumps(
        [
            event("system-reboot", 7200),
            event("instance-retirement", 86400),
            event("instance-stop", 60, "completed"),
            event("system-maintenance", 60, "canceled"),
            event("something-new", 60),
        ]
    )
    reboot, retirement = read(aws_source, aws).until(2)
    assert (reboot.kind, reboot.disk_survives) == (NoticeKind.MAINTENANCE, True)
    assert 7190 < left(reboot) < 7202
    assert not retirement.disk_survives


def test_the_time_of_a_scheduled_event_is_read_as_amazon_writes_it():
    assert endpoints.wall_time("1 Jan 2020 01:03:47 GMT") == 1577840627.0


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_seconds", [-86400.0, 7200.0])
def test_a_wrong_clock_here_does_not_move_the_deadline(aws, read, left, ahead_seconds):
    aws.ahead_seconds = ahead_seconds
    aws.announce(120)
    (notice,) = read(aws_source, aws).until(1)
    assert 115 < left(notice) < 122


@pytest.mark.parametrize("status", [429, 503, 500, 403])
def test_a_busy_service_is_asked_again_and_says_nothing_of_notices(aws, read, caplog, status):
    aws.announce(120)
    found = read(aws_source, aws)
    found.until(1)
    aws.values[aws.SPOT] = status
    rounds(aws, aws.SPOT)
    found.until(1)  # it is not withdrawn
    aws.announce(60)
    found.until(3)
    said = [one for one in caplog.messages if f"status {status}" in one]
    assert len(said) == 1, "it is logged once until an answer comes"


def test_pauses_grow_and_a_service_may_ask_for_a_longer_one(monkeypatch):
    monkeypatch.setattr(polling, "FIRST_PAUSE_SECONDS", 1.0)
    monkeypatch.setattr(polling, "MAX_PAUSE_SECONDS", 60.0)
    pauses = [[polling._pause(failures, 0.0) for _ in range(100)] for failures in range(12)]
    for failures, some in enumerate(pauses):
        longest = min(60.0, 2.0**failures)
        assert longest / 2 <= min(some) < max(some) <= longest
    asked = [polling._pause(0, 30.0) for _ in range(100)]
    assert 30.5 <= min(asked) < max(asked) <= 31.0, "at different moments"
    assert endpoints._wait_seconds({"Retry-After": "20"}) == 20.0
    assert endpoints._wait_seconds({"Retry-After": "86400"}) == 60.0
    assert endpoints._wait_seconds({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}) == 0.0


def test_a_service_that_asks_to_be_left_alone_is(aws, read):
    aws.values[aws.SPOT] = (429, {"Retry-After": "30"}, "")
    read(aws_source, aws)
    rounds(aws, aws.REBALANCE, 20)
    assert aws.count(aws.SPOT) == 1


def test_a_time_out_is_not_no_notice_and_the_log_names_the_hop_limit(
    aws, read, caplog, monkeypatch
):
    monkeypatch.setattr(endpoints, "_ANSWER_SECONDS", 0.3)
    aws.announce(120)
    found = read(aws_source, aws)
    found.until(1)
    aws.values[aws.SPOT] = SILENCE
    rounds(aws, aws.SPOT)
    found.until(1)
    (said,) = [one for one in caplog.messages if "in time" in one and "spot" not in one]
    assert "http-put-response-hop-limit 2" in said


def test_a_token_that_never_comes_is_said_once(aws, read, caplog, monkeypatch):
    monkeypatch.setattr(endpoints, "_ANSWER_SECONDS", 0.05)
    aws.values[aws.TOKEN] = SILENCE
    found = read(aws_source, aws)
    rounds(aws, aws.TOKEN, 6)
    assert found.notices == []
    assert len([one for one in caplog.messages if "hop" in one]) == 1
    assert not any(request.endswith(aws.SPOT) for request in aws.requests)


@pytest.mark.parametrize(
    "answer",
    [
        "<html>",
        "[]",
        '{"action": "terminate"}',
        '{"action": "terminate", "time": "soon"}',
        '{"action": 7, "time": "2020-10-16T19:18:24Z"}',
        (200, {}, b"\xff\xfe" * 10),
        "{" * 100_000,
        "x" * (1 << 21),
        (302, {"Location": "/elsewhere"}, ""),
    ],
)
def test_an_answer_that_makes_no_sense_changes_nothing(aws, read, answer):
    aws.announce(120)
    found = read(aws_source, aws)
    found.until(1)
    aws.values["/elsewhere"] = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    aws.values[aws.SPOT] = answer
    rounds(aws, aws.SPOT)
    found.until(1)


def test_no_proxy_is_asked(aws, read, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    aws.announce(120)
    read(aws_source, aws).until(1)


# ---- Google ----------------------------------------------------------------------------------------------------------


def test_a_preempted_machine_is_known_at_once_with_few_requests(gcp, read, left):
    found = read(gcp_source, gcp)
    eventually(lambda: gcp.count(gcp.PREEMPTED) == 2)  # the second waits for a change
    gcp.current[gcp.PREEMPTED] = "TRUE"
    (notice,) = found.until(1)
    assert (notice.kind, notice.disk_survives) == (NoticeKind.RECLAIM, False)
    assert 25 < left(notice) <= 30
    eventually(lambda: gcp.count(gcp.PREEMPTED) == 3)
    found.until(1)


@pytest.mark.parametrize(
    ("value", "count"), [("TERMINATE_ON_HOST_MAINTENANCE", 1), ("MIGRATE_ON_HOST_MAINTENANCE", 0)]
)
def test_a_machine_that_is_moved_with_its_memory_is_left_alone(gcp, read, left, value, count):
    found = read(gcp_source, gcp)
    eventually(lambda: gcp.count(gcp.MAINTENANCE) == 2)
    gcp.current[gcp.MAINTENANCE] = value
    eventually(lambda: gcp.count(gcp.MAINTENANCE) == 3)
    for notice in found.until(count):
        assert (notice.kind, notice.disk_survives) == (NoticeKind.MAINTENANCE, True)
        assert 50 < left(notice) <= 60


def test_maintenance_that_is_called_off_is_withdrawn(gcp, read):
    gcp.current[gcp.MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
    found = read(gcp_source, gcp)
    (notice,) = found.until(1)
    gcp.current[gcp.MAINTENANCE] = "NONE"
    assert found.until(2)[1].id == notice.id
    assert found.notices[1].withdrawn


def test_a_server_that_does_not_wait_is_not_asked_without_a_pause(gcp, read):
    gcp.values[gcp.PREEMPTED] = (200, {"Metadata-Flavor": "Google", "ETag": "same"}, "FALSE")
    read(gcp_source, gcp, pace=1.0)
    eventually(lambda: gcp.count(gcp.PREEMPTED) >= 2)
    assert gcp.count(gcp.PREEMPTED) < 4


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, "TRUE"),  # no Metadata-Flavor: something else answers
        (503, {}, '{"error":"no notifications have been received yet, try again later"}'),
        404,
    ],
)
def test_what_is_not_googles_answer_is_no_notice(gcp, read, answer):
    gcp.values[gcp.PREEMPTED] = answer
    found = read(gcp_source, gcp)
    rounds(gcp, gcp.PREEMPTED)
    assert found.notices == []
    del gcp.values[gcp.PREEMPTED]
    gcp.current[gcp.PREEMPTED] = "TRUE"
    found.until(1)


# ---- Azure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected", "survives"),
    [
        ("Preempt", NoticeKind.RECLAIM, False),
        ("Terminate", NoticeKind.RECLAIM, False),
        ("Reboot", NoticeKind.MAINTENANCE, True),
        ("Redeploy", NoticeKind.MAINTENANCE, True),
    ],
)
def test_events_of_this_machine_count(azure, read, left, kind, expected, survives):
    azure.values[azure.NAME] = "This-VM"  # names are not case-sensitive
    azure.announce("one", kind, 30)
    (notice,) = read(azure_source, azure).until(1)
    assert (notice.kind, notice.disk_survives) == (expected, survives)
    assert 25 < left(notice) < 32


def test_freezes_and_other_machines_events_are_left_alone(azure, read):
    azure.announce("freeze", "Freeze", 30)
    azure.announce("other", "Preempt", 30, ["that-vm", "this-vm-2"])
    found = read(azure_source, azure)
    rounds(azure, azure.EVENTS)
    assert found.notices == []
    azure.announce("both", "Preempt", 30, ["that-vm", "this-vm"])
    (notice,) = found.until(1)
    assert notice.id == "azure:both"


def test_an_event_that_has_begun_keeps_its_deadline(azure, read, left):
    azure.announce("one", "Terminate", 300)
    found = read(azure_source, azure)
    found.until(1)
    azure.events.clear()
    azure.announce("one", "Terminate")  # NotBefore is empty now
    rounds(azure, azure.EVENTS)
    found.until(1)
    azure.announce("two", "Preempt")
    second = found.until(2)[1]
    assert 25 < left(second) <= 30


def test_an_event_that_is_called_off_is_withdrawn(azure, read):
    azure.announce("one", "Reboot", 900)
    found = read(azure_source, azure)
    found.until(1)
    azure.events.clear()
    assert found.until(2)[1].withdrawn


def test_without_the_machines_name_nothing_is_believed(azure, read):
    azure.announce("one", "Preempt", 30)
    azure.values[azure.NAME] = 503
    found = read(azure_source, azure)
    rounds(azure, azure.NAME)
    assert found.notices == []
    azure.values[azure.NAME] = "this-vm"
    found.until(1)


def test_hundreds_of_events_are_too_many_to_believe(azure, read):
    for number in range(300):
        azure.announce(f"event-{number}", "Preempt", 3000)
    found = read(azure_source, azure)
    rounds(azure, azure.EVENTS)
    found.until(50)


# ---- many daemons ----------------------------------------------------------------------------------------------------


class Throttled(doubles.Azure):
    """A service that answers at most so many requests per second, and throttles the others."""

    def __init__(self, per_second):
        super().__init__()
        self.per_second = per_second
        self.answered = self.throttled = 0
        self._tokens, self._filled_at = 1.0, time.monotonic()

    def prepare(self, handler):
        grown = (time.monotonic() - self._filled_at) * self.per_second
        self._tokens, self._filled_at = min(self._tokens + grown, 5.0), time.monotonic()
        if self._tokens < 1.0:
            self.throttled += 1
            return 429 if self.throttled % 2 else 503
        self._tokens -= 1.0
        self.answered += 1
        return super().prepare(handler)


def test_twenty_daemons_share_what_a_service_allows_and_all_of_them_are_told(read):
    """Without slower polls each would ask 20 times a second: 400 requests, of which 100 may be answered."""
    with doubles.serving(Throttled(per_second=100)) as double:
        found = [read(azure_source, double, pace=0.05) for _ in range(20)]
        eventually(lambda: double.answered >= 300)
        answered, throttled = double.answered, double.throttled
        eventually(lambda: double.answered >= answered + 300)
        refused = double.throttled - throttled
        assert refused < 150, f"{refused} of {refused + 300} requests were throttled"
        double.announce("one", "Preempt", 30)
        for one in found:
            one.until(1)


# ---- all of them -----------------------------------------------------------------------------------------------------


class AtGoogle:
    """What Google's service is asked, and how it tells of a notice and of a second one."""

    module, path, second_path = gcp_source, doubles.Gcp.PREEMPTED, doubles.Gcp.MAINTENANCE

    def __init__(self, double):
        self.double = double

    def announce(self):
        self.double.current[self.path] = "TRUE"

    def announce_another(self):
        self.double.current[self.second_path] = "TERMINATE_ON_HOST_MAINTENANCE"

    def withdraw(self):
        self.double.current[self.path] = "FALSE"


class AtAzure:
    """What Azure's service is asked, and how it tells of a notice and of a second one."""

    module, path = azure_source, doubles.Azure.EVENTS

    def __init__(self, double):
        self.double = double

    def announce(self):
        self.double.announce("one", "Preempt", 30)

    def announce_another(self):
        self.double.announce("two", "Reboot", 900)

    def withdraw(self):
        del self.double.events[0]


@pytest.mark.parametrize("trouble", [404, 429, 503, SILENCE], ids=["404", "429", "503", "time-out"])
@pytest.mark.parametrize("provider", [AtGoogle, AtAzure])
def test_no_trouble_of_a_service_withdraws_a_notice_and_a_second_one_is_another(
    gcp, azure, read, monkeypatch, provider, trouble
):
    monkeypatch.setattr(gcp_source, "_WAIT_SECONDS", 0)
    monkeypatch.setattr(gcp_source, "_MORE_SECONDS", 0.2)
    monkeypatch.setattr(endpoints, "_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(azure_source, "_NEXT_SECONDS", 0.2)
    at = provider(gcp if provider is AtGoogle else azure)
    at.announce()
    found = read(at.module, at.double)
    (first,) = found.until(1)
    answers = at.double.values.get(at.path)
    at.double.values[at.path] = trouble
    rounds(at.double, at.path)
    assert found.notices == [first]
    if answers is None:
        del at.double.values[at.path]
    else:
        at.double.values[at.path] = answers
    rounds(at.double, at.path)
    assert found.notices == [first]
    at.announce_another()
    second = found.until(2)[1]
    assert (second.withdrawn, second.id == first.id) == (False, False)
    at.withdraw()
    last = found.until(3)[2]
    assert (last.id, last.withdrawn) == (first.id, True)
