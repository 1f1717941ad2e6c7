"""What is printed for people: plain at any width, ids whole, no colour where nobody sees it."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from headway.cli import terminal
from headway.cli.fleet import HIDDEN, peaks_text, stats_text
from headway.cli.moments import moment, now
from headway.cli.outcome import work_code
from headway.cli.progress import EVERY_S, Board, bar, progress_text, task_news, tree_lines, tree_news
from headway.cli.terminal import fields, paint, table
from headway.cli.top import Frame, draw
from headway.wire.views.fleet import PeakView, Stats
from headway.wire.views.tasks import Page, ProgressView, TaskView
from headway.wire.views.trees import LevelView, TreeTaskView, TreeView

LONG = "a-name-that-goes-on-and-on-" * 4


def test_a_table_in_a_pipe_cuts_nothing_and_draws_no_boxes() -> None:
    text = table(("ID", "NAME"), [("1234567890123456789", LONG)], wide="NAME")
    assert text.splitlines() == ["ID                   NAME", f"1234567890123456789  {LONG}"]
    assert text.isascii()


def test_on_a_narrow_terminal_only_the_wide_column_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(terminal, "_columns", lambda: 60)
    lines = table(("ID", "NAME", "NODE"), [("1234567890123456789", LONG, "node-1")], wide="NAME").splitlines()
    assert "1234567890123456789" in lines[1]
    assert "…" in lines[1]
    assert lines[1].endswith("node-1")
    assert max(map(len, lines)) <= 60


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("failed") == "failed"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert paint("failed") == "\x1b[31mfailed\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("failed") == "failed"


def test_fields_leave_out_what_is_unknown_and_align_what_has_several_lines() -> None:
    assert fields([("id", 1), ("node", None), ("labels", "a=1\nb=2")]) == "id      1\nlabels  a=1\n        b=2"


@pytest.mark.parametrize(
    ("state", "exit_code", "expected"),
    [
        ("succeeded", 0, 0), ("succeeded", None, 0), ("failed", 3, 3), ("failed", None, 1), ("failed", -9, 137),
        ("failed", 300, 255), ("failed", 0, 1), ("cancelled", None, 1), ("skipped", None, 1), ("expired", None, 1),
    ],
)  # fmt: skip
def test_the_exit_code_is_the_works_own_or_1_when_it_failed_without_one(
    state: str, exit_code: int | None, expected: int
) -> None:
    assert work_code(state, exit_code) == expected


def test_a_time_is_how_long_ago_or_a_moment() -> None:
    an_hour_ago = datetime.datetime.fromisoformat(moment("1h", "--since") or "")
    assert abs((now() - an_hour_ago).total_seconds() - 3600) < 60
    assert moment("2026-11-15T03:00:00+00:00", "--since") == "2026-11-15T03:00:00+00:00"
    assert moment(None, "--since") is None


def test_a_bar_never_leaves_its_width() -> None:
    assert [bar(part, 4, 4) for part in (-1, 0, 2, 4, 9)] == ["░░░░", "░░░░", "██░░", "████", "████"]
    assert bar(1, 0, 4) == "░░░░"


def test_progress_without_a_total_is_its_text() -> None:
    assert progress_text(ProgressView(3, 0, "copying")) == "copying"
    assert progress_text(ProgressView(5, 10, "copying")) == "█████░░░░░ 50% copying"
    assert progress_text(None) == ""


def tree(tasks: int) -> TreeView:
    members = [TreeTaskView(str(i), f"part-{i}", "running" if i == 1 else "succeeded", 0) for i in range(tasks)]
    root = TreeTaskView("99", "root", "blocked", 1)
    levels = [LevelView(0, tasks, 1), LevelView(1, 1, 1)]
    return TreeView("7", "nightly", "running", now(), levels, [root, *members])


def test_a_tree_is_drawn_level_by_level_with_its_tasks() -> None:
    assert tree_lines(tree(2), 12.3, 24) == [
        "nightly  running  1/3  12s",
        "  level 0  ██████████░░░░░░░░░░  1/2",
        "    ✓ part-0  succeeded",
        "    ● part-1  running",
        "  level 1  ░░░░░░░░░░░░░░░░░░░░  0/1",
        "    · root    blocked",
    ]


def test_a_tree_too_tall_for_the_terminal_shows_only_what_runs_or_failed() -> None:
    lines = tree_lines(tree(500), 1, 24)
    assert len(lines) == 4
    assert "    ● part-1    running" in lines


def test_a_log_is_told_of_what_changed_and_not_too_often(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    board = Board(live=True, keep=False)
    for passed, what in ((0.1, "a"), (EVERY_S, "a 1 %"), (0.5, "a 2 %"), (EVERY_S, "a 2 %"), (EVERY_S, "a 2 %"), (EVERY_S, "a 3 %")):
        clock[0] += passed
        board.tell(what)
    assert [line.split("s  ")[1] for line in capsys.readouterr().err.splitlines()] == ["a 1 %", "a 2 %", "a 3 %"]
    clock[0] += EVERY_S
    Board(live=True, keep=False, speaks=False).tell("quiet")
    assert capsys.readouterr().err == ""


def test_news_for_a_log_say_how_far_a_task_or_a_tree_is() -> None:
    when = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)
    running = [TreeTaskView(str(n), f"t{n}", "running", 0, progress=ProgressView(1, 4, "copying") if n == 0 else None) for n in range(5)]
    tree = TreeView("1", "night", "running", when, [LevelView(0, 1200, 1000)], running, total=12_000, left=11_800)
    assert tree_news(tree) == "night: 200 of 12,000 done; running: t0 25 % copying, t1, t2 and 2 more"
    assert tree_news(TreeView("1", "night", "running", when, [], [], total=3, left=3)) == "night: 0 of 3 done"
    task = TaskView("1", "copy", "default", "running", "delayable", "cp", {}, 2, 3, 600.0, when, when, when, node="n1")
    task.progress = ProgressView(0, 0, "counting")
    assert task_news(task) == "copy: running on n1, attempt 2 of 3 counting"


def test_what_a_tenant_is_not_told_is_not_shown_as_nothing() -> None:
    told = Stats({"ready": 3}, {}, [], finished_per_s=0.0, submitted_per_s=0.0, servers=0, leaders={}, version="1")
    for text in (stats_text(told), draw(Frame(told, [], Page([])), lines=5)):
        assert HIDDEN in text
        assert "ready 3" in text
        assert not any(word in text for word in ("cpus", "server", "finished", "handed out"))
    whole = Stats({"ready": 3}, {"up": 1}, [], 2.0, 4.0, servers=1, leaders={}, version="1", free_cpus=1.0, total_cpus=2.0)
    full = msgspec.structs.replace(whole, trouble="the database cannot take more: no space")
    assert "trouble     the database cannot take more: no space\n" in stats_text(full)
    assert draw(Frame(full, [], Page([])), lines=5).startswith("the database cannot take more: no space\n")
    assert "1 of 2 free" in stats_text(whole)
    assert "1 server   submitted 4/s   finished 2/s" in draw(Frame(whole, [], Page([])), lines=5)


def test_a_peak_says_how_many_cpus_it_would_have_taken_more_beside_those_of_the_fleet():
    began = now() - datetime.timedelta(hours=1)
    over = PeakView(began, began + datetime.timedelta(seconds=50), 1.0, 2.0, 16, 8.0, 275.0)
    header, row = peaks_text([over]).splitlines()
    assert header.split() == ["PEAK", "LASTED", "HIGHEST", "TASKS", "PUT", "OFF", "CPUS", "SAVED", "ON", "AVERAGE", "FLEET"]
    assert row.split()[-7:] == ["50s", "100%", "16", "8", "5.5", "2", "cpus"]
    assert peaks_text([]) == "no peak in the last 30 days"
