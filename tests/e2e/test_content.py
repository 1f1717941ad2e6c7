"""What tasks run and may know, end to end: uploads, URLs, secrets, volumes, effects that happen once (H1 H10 H11)."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client
from headway.errors import InvalidInput, TaskFailed
from tests.support.upped import Upped, upped
from tests.support.waiting import until


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: tests print enough."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("content")


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """A web server for scripts; the folder `site` is what it serves."""
    (folder / "site").mkdir()
    handler = functools.partial(Quiet, directory=str(folder / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Upped]:
    (folder / "volume").mkdir()
    with upped(folder / "up", HEADWAY_FETCH_HOSTS="127.0.0.1", HEADWAY_VOLUMES=f"scripts={folder / 'volume'}") as running:
        yield running


@pytest.fixture(scope="module")
def client(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as connected:
        yield connected


def logged(client: Client, task: str) -> str:
    return "".join(line.text for line in client.logs(task, follow=True))


def test_a_script_is_uploaded_with_the_task_and_runs_by_its_suffix(up: Upped, tmp_path: Path) -> None:
    script = tmp_path / "greet.pl"
    script.write_text('print "hello from ", $ARGV[0], "\\n";')
    done = up.headway("run", "--upload", str(script), "--arg", "perl")
    assert (done.returncode, done.stdout) == (0, "hello from perl\n"), done.stderr


def test_the_same_upload_is_kept_once_and_no_tenant_finds_anothers(up: Upped, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text("echo one")
    first = client.upload(script)
    assert client.upload(script) == first
    assert client.submit(executable=first).wait(120).state == "succeeded"
    with pytest.raises(InvalidInput, match="there is no upload"):
        client.submit(executable=f"upload:{'0' * 64}/a.sh")


def test_a_task_file_says_upload_for_a_script_beside_it(up: Upped, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("print('from the file')")
    (tmp_path / "tree.yaml").write_text("name: one\nexecutable: upload:./step.py\n")
    done = up.headway("run", str(tmp_path / "tree.yaml"))
    assert (done.returncode, done.stdout) == (0, "from the file\n"), done.stderr


def test_a_schedule_takes_its_script_along(up: Upped, tmp_path: Path) -> None:
    (tmp_path / "often.py").write_text("print('fired')")
    (tmp_path / "often.yaml").write_text("name: often\nschedule: 3600\nexecutable: upload:./often.py\n")
    assert up.headway("apply", str(tmp_path / "often.yaml")).returncode == 0
    assert up.headway("schedule", "trigger", "often").returncode == 0
    (tmp_path / "often.py").unlink()
    with Client(up.url, up.token) as client:
        until(lambda: "succeeded" in {view.state for view in client.page(name="often").tasks})


def test_a_url_without_a_checksum_is_what_it_was_when_it_was_first_fetched(
    up: Upped, client: Client, site: str, folder: Path
) -> None:
    script = folder / "site" / "job.sh"
    script.write_text("echo first")
    task = client.submit(executable=f"{site}/job.sh")
    assert logged(client, task.id) == "first\n"
    script.write_text("echo changed")
    with pytest.raises(TaskFailed, match=f"is not what it was when it was first fetched.*headway pin rm {site}/job.sh"):
        client.submit(executable=f"{site}/job.sh", args=["another definition"]).result(120)
    assert f"{site}/job.sh" in up.headway("pin", "ls").stdout
    assert up.headway("pin", "rm", f"{site}/job.sh").returncode == 0
    assert logged(client, client.submit(executable=f"{site}/job.sh", args=["a third one"]).id) == "changed\n"
    assert "`headway pin ls` lists them" in up.headway("pin", "rm", f"{site}/other.sh").stderr


def test_a_scheme_that_nobody_fetches_is_refused(up: Upped) -> None:
    assert "'ftp://127.0.0.1/job.sh' has an unknown scheme" in up.headway("run", "--executable", "ftp://127.0.0.1/job.sh").stderr


def test_a_url_with_a_checksum_must_have_that_content(client: Client, site: str, folder: Path) -> None:
    (folder / "site" / "sum.sh").write_text("echo summed")
    right = (
        "sha256:"
        + subprocess.run(["sha256sum", folder / "site" / "sum.sh"], capture_output=True, text=True, check=True).stdout.split()[0]
    )
    assert logged(client, client.submit(executable=f"{site}/sum.sh", checksum=right).id) == "summed\n"
    with pytest.raises(TaskFailed, match="is not what its checksum says"):
        client.submit(executable=f"{site}/sum.sh", checksum="sha256:" + "0" * 64).result(120)


def test_only_allowed_hosts_are_fetched_from(client: Client, site: str) -> None:
    with pytest.raises(TaskFailed, match="may not fetch from 'localhost'"):
        client.submit(executable=site.replace("127.0.0.1", "localhost") + "/job.sh").result(120)


def test_a_script_on_a_shared_volume_runs_and_cannot_leave_it(client: Client, folder: Path) -> None:
    (folder / "volume" / "in.sh").write_text('echo "in $(basename $HEADWAY_VOLUME_SCRIPTS)"')
    (folder / "secret.sh").write_text("echo escaped")
    (folder / "volume" / "out.sh").symlink_to(folder / "secret.sh")
    assert logged(client, client.submit(executable="volume:scripts/in.sh").id) == "in volume\n"
    with pytest.raises(TaskFailed, match="outside the volume"):
        client.submit(executable="volume:scripts/out.sh").result(120)


def test_a_secret_is_seen_by_the_task_it_was_granted_to_and_by_no_log(up: Upped, client: Client) -> None:
    client.set_secret("db-password", "correct horse")
    task = client.submit(command='echo "it is $DB_PASSWORD"; printf "$DB_PASSWORD" | wc -c', secrets=["db-password"])
    assert logged(client, task.id) == "it is ***\n13\n"
    plain = client.submit(command='echo "[$DB_PASSWORD]"')
    assert logged(client, plain.id) == "[]\n"
    assert [one["name"] for one in client.secrets()] == ["db-password"]
    listed = up.headway("secret", "ls", "--json").stdout
    assert "db-password" in listed
    assert "correct horse" not in listed


async def test_a_secret_is_sealed_in_the_database(up: Upped, client: Client) -> None:
    client.set_secret("sealed", "in the clear")
    found = await up.fetchval("select encode(sealed, 'escape') from headway.secret where name = 'sealed'")
    assert "in the clear" not in str(found)


def test_a_changed_secret_counts_for_tasks_that_start_after_it(client: Client) -> None:
    client.set_secret("turning", "first-value")
    spec = {"command": 'test "$TURNING" = "$EXPECTED"', "secrets": ["turning"]}
    assert client.submit(spec, env={"EXPECTED": "first-value"}).wait(120).state == "succeeded"
    client.set_secret("turning", "second-value")
    assert client.submit(spec, env={"EXPECTED": "second-value"}).wait(120).state == "succeeded"
    client.remove_secret("turning")
    with pytest.raises(InvalidInput, match="there is no secret 'turning'"):
        client.submit(spec, env={"EXPECTED": "none"})


def test_functions_of_warm_runners_get_secrets_too(client: Client, tmp_path: Path) -> None:
    client.set_secret("warm", "warm-value")
    (tmp_path / "f.mjs").write_text("export const read = () => { console.log(process.env.WARM); return process.env.WARM.length }")
    (tmp_path / "g.py").write_text("import os\ndef read():\n    print(os.environ['WARM'])\n    return len(os.environ['WARM'])\n")
    for name in ("f.mjs", "g.py"):
        task = client.submit(function=f"{tmp_path / name}:read", secrets=["warm"])
        assert task.result(120) == 10
        assert logged(client, task.id) == "***\n"


def test_a_function_whose_secret_was_removed_is_not_started_by_a_warm_runner_either(up: Upped, client: Client, tmp_path: Path) -> None:
    """Neither without the secret, nor with the value that the node was told before."""
    for name in ("going", "staying"):
        client.set_secret(name, f"{name}-value")
    (tmp_path / "h.py").write_text(
        "import os\ndef read(): return os.environ['GOING']\ndef other(): return os.environ.get('GOING', 'none')\n"
        "def plain(): return 'plain'\n"
    )
    assert up.headway("queue", "create", "held").returncode == 0
    known = {"function": f"{tmp_path / 'h.py'}:read", "secrets": ["going"], "queue": "held"}  # another queue is another definition
    assert client.submit(known).result(120) == "going-value"  # its runner is warm from now on, and the node knows the value
    assert up.headway("queue", "pause", "held").returncode == 0
    again = client.submit(known)
    fresh = client.submit(function=f"{tmp_path / 'h.py'}:other", secrets=["going", "staying"], queue="held")
    beside = client.submit(function=f"{tmp_path / 'h.py'}:plain", queue="held")
    client.remove_secret("going")
    assert up.headway("queue", "resume", "held").returncode == 0
    for task in (again, fresh):
        with pytest.raises(TaskFailed, match="the secret 'going' is not to be had: it was removed"):
            task.result(120)
    assert beside.result(120) == "plain"


BANK = """
import headway, json, os, sys

ledger, crash = sys.argv[1], sys.argv[2]
with headway.current().once("transfer-" + os.environ["HEADWAY_TASK_ID"]) as claim:
    if claim:
        with open(ledger, "a") as file:
            file.write("100 from Ada to Grace\\n")
        claim.value = {"receipt": 7}
print("receipt", claim.value["receipt"], flush=True)
if int(os.environ["HEADWAY_ATTEMPT"]) == 1 and crash == "after":
    os.kill(os.getpid(), 9)
"""


def test_money_is_transferred_once_though_the_task_runs_twice(client: Client, tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    ledger = tmp_path / "ledger"
    task = client.submit(executable=str(tmp_path / "bank.py"), args=[str(ledger), "after"], attempts=3, retry={"interval": 0.1})
    view = task.wait(120)
    assert (view.state, view.attempt) == ("succeeded", 2)
    assert ledger.read_text() == "100 from Ada to Grace\n"
    assert logged(client, task.id) == "receipt 7\nreceipt 7\n"


SHELL = """
headway once "$1" -- sh -c 'echo paid >> "$0"' "$2" || exit 1
[ "$HEADWAY_ATTEMPT" != 1 ] || kill -9 $$
"""


def test_a_shell_script_claims_with_a_command(client: Client, tmp_path: Path) -> None:
    (tmp_path / "pay.sh").write_text(SHELL)
    task = client.submit(
        executable=str(tmp_path / "pay.sh"), args=["invoice-1", str(tmp_path / "paid")], attempts=2, retry={"interval": 0.1}
    )
    assert task.wait(120).state == "succeeded", logged(client, task.id)
    assert (tmp_path / "paid").read_text() == "paid\n"


UNSURE = """
import headway, json, os
claim = headway.current().once("unsure")
if os.environ["HEADWAY_ATTEMPT"] == "1":
    assert claim
    os.kill(os.getpid(), 9)
assert claim.uncertain and not claim
assert headway.current().once("unsure", again=True)
headway.current().once("unsure").done("sent")
assert headway.current().once("unsure").value == "sent"
"""


def test_an_attempt_that_died_in_between_leaves_it_uncertain(client: Client, tmp_path: Path) -> None:
    (tmp_path / "unsure.py").write_text(UNSURE)
    task = client.submit(executable=str(tmp_path / "unsure.py"), attempts=2, retry={"interval": 0.1})
    assert task.wait(120).state == "succeeded", logged(client, task.id)


def test_a_claim_of_an_attempt_that_has_ended_is_refused(up: Upped, client: Client, tmp_path: Path) -> None:
    """The token of an attempt dies with it, and so does its right to claim: the attempt number is the fence."""
    task = client.submit(command='echo "$HEADWAY_TOKEN" > ' + str(tmp_path / "token"))
    task.wait(120)
    asked = subprocess.run(
        ["curl", "-s", "-H", f"Authorization: Bearer {(tmp_path / 'token').read_text().strip()}", "-d",
         json.dumps({"key": "late", "attempt": 1}), f"{up.url}/v1/tasks/{task.id}/once"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(asked.stdout)["status"] == 401
