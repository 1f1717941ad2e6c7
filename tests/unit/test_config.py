"""Settings: which source wins, and how precisely a mistake is named."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from headway.config import Settings, environment, load, options
from headway.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "settings.py"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headway.toml"


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(file: Path) -> None:
    file.write_text("log_level = 'error'\n[server]\nport = 1\nhost = 'file'\n[agent]\ncpus = 3\n")
    env = {"HEADWAY_PORT": "2", "HEADWAY_HOST": "env"}
    settings = load(file=str(file), env=env, flags={"port": 4})
    assert (settings.port, settings.host, settings.cpus, settings.pool_size) == (4, "env", 3.0, 12)
    assert settings.sources == {
        "log_level": f"{file}:1",
        "port": "--port",
        "host": "HEADWAY_HOST",
        "cpus": f"{file}:6",
    }


def test_a_flag_that_was_not_given_and_an_empty_variable_count_as_not_set() -> None:
    settings = load(env={"HEADWAY_PORT": "", "HEADWAY_DATABASE": ""}, flags={"port": None})
    assert (settings.port, settings.database) == (8470, None)


def test_durations_sizes_labels_and_paths_are_read_as_people_write_them(file: Path) -> None:
    env = {
        "HEADWAY_HOLD_S": "1m30s",
        "HEADWAY_MEMORY": "2GiB",
        "HEADWAY_DISK": "1000",
        "HEADWAY_LABELS": "gpu=a100, zone=b",
        "HEADWAY_PATHS": "/a:/b",
    }
    file.write_text("[agent]\nmax_output = '2MiB'\n[agent.labels]\nfile = 'yes'\n")
    settings = load(file=str(file), env=env)
    assert (settings.hold_s, settings.memory, settings.disk, settings.max_output) == (90.0, 2 * 2**30, 1000, 2 * 2**20)
    assert settings.labels == {"gpu": "a100", "zone": "b"}
    assert settings.paths == ["/a", "/b"]
    assert load(file=str(file), env={}).labels == {"file": "yes"}


def test_the_file_is_found_in_the_working_folder_then_in_the_users_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "headway").mkdir(parents=True)
    (tmp_path / "conf" / "headway" / "headway.toml").write_text("[server]\nport = 1\n")
    monkeypatch.chdir(tmp_path)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "conf")}
    assert load(env=env).port == 1
    (tmp_path / "headway.toml").write_text("[server]\nport = 2\n")
    assert load(env=env).port == 2
    (tmp_path / "named.toml").write_text("[server]\nport = 3\n")
    assert load(env={**env, "HEADWAY_CONFIG": str(tmp_path / "named.toml")}).port == 3


def test_the_data_folder_follows_the_environment() -> None:
    assert load(env={"XDG_DATA_HOME": "/x"}).data_dir == "/x/headway"
    assert load(env={"XDG_DATA_HOME": "/x", "HEADWAY_DATA": "/y/../z"}).data_dir == "/z"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[server]\n\nprot = 1\n", 3, ["'prot' in [server]", "did you mean 'port'?"]),
        ("port = 1\n", 1, ["no setting 'port'", "belongs into [server]"]),
        ("[agent]\nlog_level = 'info'\n", 2, ["'log_level' in [agent]", "top of the file"]),
        ("[servr]\nport = 1\n", 1, ["no setting 'servr'", "did you mean 'server'?"]),
        ("[server]\nport = 'x'\n", 2, ["port is 'x'", "a whole number from 0 to 65535"]),
        ("[server]\nport = 65536\n", 2, ["port is 65536", "from 0 to 65535"]),
        ("[server]\nport = true\n", 2, ["port is True"]),
        ("[server]\nport = 1.5\n", 2, ["port is 1.5"]),
        ("[server]\nlost_s = '5 parsecs'\n", 2, ["a duration"]),
        ("[server]\nmax_body = '1 elephant'\n", 2, ["a size"]),
        ("[agent]\ncpus = -1\n", 2, ["cpus is -1", "a number from 0"]),
        ("[agent]\ncpus = nan\n", 2, ["cpus is nan"]),
        ("log_format = 'jsno'\n", 1, ["text or json", "did you mean 'json'?"]),
        ("[agent]\nlabels = 'gpu'\n", 2, ["labels as k=v"]),
        ("data_dir = 3\n", 1, ["a path"]),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(file: Path, text: str, line: int, words: list[str]) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file=str(file), env={})
    assert caught.value.extra["where"] == f"{file}:{line}"
    assert all(word in str(caught.value) for word in [f"{file}:{line}:", *words])


def test_a_file_that_is_no_toml_or_not_there_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file=str(file), env={})
    file.write_text("[server\n")
    with pytest.raises(ConfigError, match=r"headway\.toml: .*line 1"):
        load(file=str(file), env={})


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"HEADWAY_PORT: port is '-1', expected a whole number from 0 to 65535"):
        load(env={"HEADWAY_PORT": "-1"})
    with pytest.raises(ConfigError, match=r"no variable HEADWAY_DATABSE \(did you mean HEADWAY_DATABASE\?\)"):
        load(env={"HEADWAY_DATABSE": "x"})


def test_what_tasks_and_other_programs_see_is_no_mistake() -> None:
    others = {"HEADWAY_TASK_ID": "1", "HEADWAY_DEADLINE": "2", "HEADWAY_SOMETHING_ELSE": "3", "PORT": "x"}
    assert load(env=others) == load(env={})


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"--log-level: log_level is 'loud', expected debug, info, warning or error"):
        load(env={}, flags={"log_level": "loud"})
    with pytest.raises(ConfigError, match="did you mean 'heartbeat_s'"):
        load(env={}, flags={"heartbeats": 1})


@pytest.mark.parametrize("url", ["localhost:8470", "headway.example", "ftp://headway.example", "https://", "http://a:1,b:2"])
def test_an_address_that_is_none_of_a_server_is_a_mistake(url: str) -> None:
    with pytest.raises(ConfigError, match=r"HEADWAY_URL: url is .* expected http://HOST:PORT"):
        load(env={"HEADWAY_URL": url})


def test_addresses_of_servers_are_taken_as_they_are_written() -> None:
    for url in ("http://127.0.0.1:8470", "https://a:1, https://b:2/prefix", "unix:/run/headway.sock"):
        assert load(env={"HEADWAY_URL": url}).url == url


def test_a_wrong_token_is_not_printed() -> None:
    with pytest.raises(ConfigError) as caught:
        load(env={"HEADWAY_TOKEN": "hw_secret\0"})
    assert "hw_secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"heartbeat_s": 3}, "fence_s"),
        ({"fence_s": 4}, "lost_s"),
        ({"tls_cert": "c.pem"}, "go together"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(env={}, flags=flags)


def test_every_default_is_one_that_could_be_written_down() -> None:
    defaults = Settings()
    written = {name: getattr(defaults, name) for name in options() if getattr(defaults, name) is not None}
    assert [getattr(load(env={}, flags=written), name) for name in written] == list(written.values())


def test_a_process_started_with_the_settings_environment_loads_the_same_settings() -> None:
    flags = {"labels": {"a": "1", "b": "x=y"}, "paths": ["/p", "/q"], "cpus": 1.5, "memory": "1GiB", "database": "d"}
    settings = load(env={}, flags=flags)
    again = load(env=environment(settings))
    assert [getattr(again, name) for name in options()] == [getattr(settings, name) for name in options()]


def test_the_page_of_settings_is_the_one_generated() -> None:
    page = runpy.run_path(str(PAGE))
    assert page["PAGE"].read_text() == page["document"](), "run `python docs/settings.py`"


def test_a_user_without_a_home_is_told_which_folder_cannot_be_made(monkeypatch):
    """As in a container with a number for a user: no list knows it, and HOME is not set."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("uid not found")))
    assert load(env={}).data_dir == "/nonexistent/.local/share/headway"
    assert load(env={"HEADWAY_DATA": "/srv/headway"}).data_dir == "/srv/headway"
