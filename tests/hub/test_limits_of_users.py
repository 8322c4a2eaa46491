"""What an administrator sets for all users of a hub: rules of retention, and a limit of the disk use that users are told of."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets.config import Config

from jupyter_gpuckpt.client.daemon_traits import GpuCkptDaemon
from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.hub import with_suspend
from jupyter_gpuckpt.hub.spawner import exceeded
from jupyter_gpuckpt.wire import daemon_settings
from jupyter_gpuckpt.wire.hub_records import USAGE, Usage
from jupyter_gpuckpt.wire.snapshot_records import RetentionPolicy
from tests.hub.test_hostile_servers import answered, served


class Bare(SimpleLocalProcessSpawner):
    """A spawner whose own environment and progress are empty."""

    def get_env(self):
        return {}

    async def progress(self):
        for event in ():
            yield event


def made(**settings):
    spawner = with_suspend(Bare)(config=Config({"GpuCkptSpawnerMixin": settings}), api_token="t")
    spawner.user = SimpleNamespace(name="eve", settings={})
    return spawner


@pytest.fixture
def in_server(monkeypatch):
    """Return a function that returns the rules of a server of a spawner."""

    def rules_of(spawner, **own):
        for name, value in spawner.get_env().items():
            monkeypatch.setenv(name, value)
        return GpuCkptDaemon(config=Config({"GpuCkptDaemon": own})).retention()

    return rules_of


def test_servers_have_the_rules_of_the_hub_and_users_may_have_their_own(in_server):
    spawner = made(retention={"keep_last": 1, "keep_within": 3600.0, "keep_suspends": 2})
    others = {"keep_suspends": 2, "keep_tool_saves": 40, "thins": True}
    assert in_server(spawner) == RetentionPolicy(1, 3600.0, 0, **others)
    assert in_server(spawner, keep_last=7) == RetentionPolicy(7, 3600.0, 0, **others)


def test_servers_remove_automatic_snapshots_beyond_the_limit_unless_a_rule_says_else(in_server):
    assert in_server(made()).max_bytes == 0
    assert in_server(made(disk_limit=10**9)).max_bytes == 10**9
    spawner = made(disk_limit=10**9, retention={"max_bytes": 5})
    assert in_server(spawner).max_bytes == 5


@pytest.mark.parametrize("rules", [{"keep_lats": 1}, {"keep_last": "many"}, {"max_bytes": -1}])
def test_wrong_rules_are_refused_by_the_hub(rules):
    with pytest.raises(ConfigurationError) as refused:
        made(retention=rules).check_all()
    assert "c.GpuCkptSpawnerMixin.retention" in refused.value.message
    assert "keep_suspends" in refused.value.hint
    made(retention={"keep_last": 1}).check_all()


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "{",
        "[" * 10_000,
        '{"keep_last": null}',
        '{"keep_last": true}',
        '{"keep_last": "7"}',
        '{"keep_last": -1}',
        '{"keep_last": 1e300}',
        '{"unknown": 1}',
    ],
)
def test_a_server_ignores_with_one_warning_what_it_cannot_use(monkeypatch, caplog, text):
    """The rules of a newer hub must not prevent that an older server suspends kernels."""
    without = GpuCkptDaemon().retention()
    monkeypatch.setenv("JUPYTER_GPUCKPT_RETENTION", text)
    daemon_settings._usable_retention.cache_clear()
    assert GpuCkptDaemon().retention() == GpuCkptDaemon().retention() == without
    (warning,) = caplog.messages
    assert "JUPYTER_GPUCKPT_RETENTION" in warning


def test_a_server_uses_the_rules_that_it_knows(monkeypatch):
    monkeypatch.setenv("JUPYTER_GPUCKPT_RETENTION", '{"keep_weekly": 4, "keep_last": 1}')
    assert GpuCkptDaemon().retention().keep_last == 1


def test_a_user_over_the_limit_is_told_at_the_start_and_the_administrator_by_log_and_report(caplog):
    spawner = made(disk_limit=1_000_000_000)
    spawner.log = logging.getLogger("hub")

    async def update(url):
        await spawner._update_usage(url, iter(["t"]))
        return [event["message"] async for event in spawner.progress()]

    sentence = "Your snapshots take 7.0 GB on the disk; your limit is 1.0 GB."
    (message,) = asyncio.run(served(answered({"disk_bytes": 7_000_000_000}), update))
    assert message.startswith(sentence)
    (warning,) = caplog.messages
    assert "the snapshots take 7.0 GB on the disk, more than the limit of 1.0 GB." in warning
    assert spawner._log_name in warning
    assert spawner.get_state()[USAGE]["limit_bytes"] == 1_000_000_000
    caplog.clear()
    # The hub asks every ten minutes; the administrator's log has what has changed.
    assert asyncio.run(served(answered({"disk_bytes": 8_000_000_000}), update))
    assert asyncio.run(served(answered({"disk_bytes": 999_999_999}), update)) == []
    assert not caplog.text
    assert asyncio.run(served(answered({"disk_bytes": 7_000_000_000}), update))
    assert len(caplog.messages) == 1


def test_without_a_limit_nothing_is_too_much():
    assert exceeded(Usage(1.0, 10**15)) == ""
