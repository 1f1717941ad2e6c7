"""What the two processes of an agent say to each other, and agents to servers, is of a version; whoever changes it sees it here (H7)."""

from __future__ import annotations

import msgspec
import pytest

from headway.agent import link
from headway.wire import PROTOCOL, exchange

# In the order in which they are sent. An older peer passes over what is added at the end with a default; every other change needs a new
# number, of LINK for the first table and of PROTOCOL for the second, and then a new table.
LINK_2 = {
    "Setup": "settings instance work_dir capacity",
    "Adopt": "settings supervisor",
    "Ask": "number",
    "State": "number boot held settled",
    "Lease": "boot until task_key node",
    "Answer": "number boot body",
    "Taken": "number refs unknown",
    "Part": "field count items",
    "Report": "number parts",
    "Reported": "number",
    "NewBoot": "boot",
    "Lost": "boot",
    "Drain": "on",
    "EndAll": "grace_s",
    "Quit": "",
}
PROTOCOL_1 = {
    "Started": "id attempt at_ms",
    "Finished": "id attempt outcome started_ms ended_ms result exit_code error cpu_ms max_memory read_bytes written_bytes waits",
    "Output": "id attempt sequence stream at_ms data",
    "Progress": "id attempt done total text",
    "Notice": "id attempt kind number text",
    "Staged": "id attempt number",
    "Resume": "stage checkpoints",
    "Order": "id attempt definition input name traceparent dependencies resume",
    "Cancel": "id attempt grace_s",
    "Control": "number id attempt word argument",
}
TAGS_2 = {"setup", "adopt", "ask", "state", "lease", "answer", "taken", "report", "reported", "boot", "lost", "drain", "end", "quit"}


@pytest.mark.parametrize(
    ("module", "name", "fields"),
    [(link, name, fields) for name, fields in LINK_2.items()] + [(exchange, name, fields) for name, fields in PROTOCOL_1.items()],
)
def test_a_message_keeps_the_fields_of_its_version_and_what_is_added_has_a_default(module: object, name: str, fields: str) -> None:
    of = msgspec.structs.fields(getattr(module, name))
    known = fields.split()
    assert [field.name for field in of][: len(known)] == known
    assert not [field.name for field in of[len(known) :] if field.required]


def test_the_messages_of_the_link_are_those_of_its_version() -> None:
    spoken = {kind.__struct_config__.tag for union in (link.ToSupervisor, link.ToExchange) for kind in union.__args__}
    assert (spoken, link.LINK, PROTOCOL) == (TAGS_2, 2, 1)
