"""The life of a task is declared once and every statement that moves one keeps to it."""

from __future__ import annotations

import re

import pytest

from headway.domain.lifecycle import BLAME, HELD, TRANSITIONS, WAITING, Event, Outcome, State, allowed
from headway.store.queries import every_file, load

MOVES = {f"{file}.{name}": sql for file in every_file() for name, sql in load(file).items() if "-- event:" in sql}
ALL = {f"{file}.{name}": sql for file in every_file() for name, sql in load(file).items()}


def events_of(sql: str) -> list[Event]:
    words = re.search(r"-- event: (.+)", sql)
    assert words
    return [Event(word.strip()) for word in words[1].split(",")]


def guard_of(sql: str) -> set[State] | None:
    """The states a statement spells out before it moves a task: `t.state = 2` or `t.state in (3, 4, 5)`."""
    found: set[State] = set()
    for single, several in re.findall(r"\+?t\.state (?:= (\d+)|in \(([\d, ]+)\))", sql):
        found |= {State(int(n)) for n in (single or several).replace(" ", "").split(",")}
    return found or None


@pytest.mark.parametrize("name", sorted(MOVES))
def test_a_statement_that_moves_tasks_spells_the_guard_of_its_event(name):
    sql = MOVES[name]
    sources = {state for event in events_of(sql) for state in TRANSITIONS[event].sources}
    guard = guard_of(sql)
    if guard is None:  # moves rows that its caller locked, or that come from another table
        assert re.search(r"using (unnest|restore)\b", sql), f"{name} moves tasks without a guard"
    else:
        assert guard <= sources, f"{name} lets {guard - sources} through"


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_update_of_a_state_names_its_event(name):
    sql = ALL[name]
    moves = re.search(r"update task\b[^;]*?\bset\b[^;]*?\bstate =", sql, re.DOTALL) or re.search(r"delete from task\b", sql)
    if moves:
        assert "-- event:" in sql, f"{name} moves tasks and does not say by which event"


def test_a_final_state_is_left_by_sending_again_only_and_success_never():
    for event, rule in TRANSITIONS.items():
        if any(source.final for source in rule.sources):
            assert event in (Event.REVIVE, Event.RESTORE)
            assert State.SUCCEEDED not in rule.sources


def test_every_state_can_be_reached_and_every_live_state_can_end():
    targets = {state for rule in TRANSITIONS.values() for state in rule.targets}
    assert targets == set(State)
    for state in (*WAITING, *HELD):
        assert allowed(Event.CANCEL, state, State.CANCELLED)


def test_every_outcome_but_success_and_cancel_is_charged_to_somebody():
    assert set(BLAME) == set(Outcome) - {Outcome.SUCCEEDED, Outcome.CANCELLED}
