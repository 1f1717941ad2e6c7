"""What an isolated task may submit: nothing that is less isolated, and nothing it was not granted itself (C4 H11)."""

from __future__ import annotations

import pytest

from headway.domain.beneath import beneath
from headway.domain.define import define
from headway.domain.isolation import confine
from headway.domain.spec import TaskSpec
from headway.domain.task import Definition
from headway.errors import InvalidInput


def made(**fields) -> Definition:
    return confine(define(TaskSpec(**{"command": ["true"], **fields})), 1)


PARENT = made(isolation="sandbox", network=["db.internal:5432"], secrets=["password"], volumes=["shared"])


def test_a_subtask_of_a_task_that_is_not_isolated_may_be_anything():
    child = made(secrets=["other"], network="all")
    assert beneath(child, made(), 1) is child


def test_a_subtask_of_an_isolated_task_is_isolated_whatever_it_says():
    for child in (made(), made(isolation="none"), made(isolation="sandbox")):
        assert beneath(child, PARENT, 1).isolation == "sandbox"
    assert beneath(made(), PARENT, 1).tenant == 1


def test_what_the_parent_was_granted_its_subtasks_may_have():
    child = made(isolation="sandbox", network=["db.internal:5432"], secrets={"PGPASSWORD": "password"}, volumes=["shared"])
    assert beneath(child, PARENT, 1).network == ("db.internal:5432",)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"network": "all"}, "network"),
        ({"isolation": "sandbox", "network": ["metadata.internal:80"]}, "network"),
        ({"secrets": ["root"]}, "secrets: 'root'"),
        ({"volumes": ["payroll"]}, "volumes: 'payroll'"),
        ({"command": None, "executable": "volume:payroll/run.sh"}, "volumes: 'payroll'"),
    ],
)
def test_what_the_parent_was_not_granted_is_refused(fields, what):
    with pytest.raises(InvalidInput, match=what):
        beneath(made(**fields), PARENT, 1)
