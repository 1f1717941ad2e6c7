"""Every malformed file is answered with its line and with words that lead to the fix (A8)."""

# ruff: noqa: E501 -- a table reads by rows

from __future__ import annotations

import pytest

from headway.errors import CyclicGraph, InvalidInput, UnknownField
from headway.treefile import load

# (what is wrong, text, line, words of the answer)
CORPUS = [
    # not YAML
    ("empty", "", 1, "the file is empty"),
    ("only a comment", "# nothing\n", 1, "the file is empty"),
    ("a tab as indentation", "nightly:\n\ttask:\n", 2, "a tab is not allowed"),
    ("a tab deeper", "nightly:\n  task:\n    command: x\n\tattempts: 3\n", 4, "indent with spaces"),
    ("a tab after the colon", "command: x\nattempts:\t3\n", 2, "a tab is not allowed"),
    ("a quote left open", "command: 'x\nattempts: 3\n", 3, "not closed"),
    ("a bracket left open", "command: [a, b\nattempts: 3\n", 2, "not valid YAML"),
    ("a brace left open", "command: x\nretry: {interval: 3\n", 3, "not closed"),
    ("uneven indentation", "nightly:\n  task:\n    command: x\n   attempts: 3\n", 4, "check the indentation"),
    ("two colons in a line", "command: echo a: b\n", 1, "in quotes"),
    ("a list and keys", "- a\nb: c\n", 2, "check the indentation"),
    ("a backtick", "command: `date`\n", 1, "in quotes"),
    ("an at sign", "command: x\nname: @x\n", 2, "in quotes"),
    ("a control character", "command: x\nname: a\x01b\n", 2, "U+0001"),
    ("a NUL written as an escape", 'command: x\nname: "a\\0b"\n', 2, "NUL"),
    ("half a surrogate pair", 'command: x\nname: "\\ud800"\n', 2, "surrogate"),
    # a colon without its space
    ("schedule:300 alone", "schedule:300\n", 1, "write 'schedule: 300'"),
    ("schedule:300 first", "n:\n  task:\n    schedule:300\n    executable: x\n", 3, "write 'schedule: 300'"),
    ("schedule:300 in between", "n:\n  task:\n    executable: x\n    schedule:300\n    attempts: 3\n", 4, "lacks a space"),
    ("schedule:300 last", "n:\n  task:\n    executable: ./x.sh\n    schedule:300\n", 4, "lacks a space"),
    ("folded into a text", "executable: ./x.sh\n  attempts:3\n", 2, "write 'attempts: 3'"),
    ("executable:./x.sh", "n:\n  task:\n    executable:./x.sh\n", 3, "write 'executable: ./x.sh'"),
    ("a parameter in brackets without quotes", "command: x\ninput: {a: ${p}}\n", 2, "put ${...} in quotes"),
    # anchors, tags, keys
    ("an unknown anchor", "command: x\nretry: *fast\n", 2, "no anchor '&fast'"),
    ("an anchor in itself", "command: x\ninput: &a [1, *a]\n", 2, "contains itself"),
    ("a Python tag", "command: !!python/object:os.system x\n", 1, "is not allowed"),
    ("a tag of one's own", "command: x\nattempts: !int 3\n", 2, "the tag '!int'"),
    ("a merge of a text", "command: x\n<<: base\n", 2, "merges a mapping"),
    ("a key twice", "command: x\nattempts: 1\nattempts: 2\n", 3, "given twice, first in line 2"),
    ("a subtask twice", "n:\n  task:\n    command: x\n    a: {command: y}\n    a: {command: z}\n", 5, "given twice"),
    ("a list as a key", "command: x\n? [a]\n: b\n", 2, "a key must be"),
    ("no key", "command: x\n: b\n", 2, "a key is missing"),
    # shape
    ("a text", "hello\n", 1, "expected a tree or a task"),
    ("a list", "[a, b]\n", 1, "here is a list (a JSON list of tasks"),
    ("a tree that is a number", "nightly: 5\n", 1, "unknown keyword 'nightly'"),
    ("a tree that is a list", "nightly: [a]\n", 1, "expected a mapping"),
    ("a tree without tasks", "a:\n  b: {command: x}\nc: {}\n", 3, "has no task"),
    ("only parameters", "parameters: {a: 1}\n", 1, "has no task"),
    ("an empty sequence", "sequence: []\n", 1, "has no task"),
    ("a subtask with no value", "n:\n  task:\n    command: x\n    fetch:\n", 4, "'fetch' has nothing to run"),
    ("a subtask with nothing to run", "n:\n  task:\n    command: x\n    fetch:\n      attempts: 3\n", 4, "'fetch' has nothing to run"),
    ("a root with nothing to run", "n:\n  attempts: 3\n", 1, "nothing to run"),
    ("a subtask in short form", "n:\n  task:\n    command: x\n    fetch: ./f.sh\n", 4, "fetch: {executable: ./f.sh}"),
    ("a subtask that is a list", "n:\n  task:\n    command: x\n    fetch: [a]\n", 4, "a subtask is a mapping"),
    ("a keyword as a subtask's name", "n:\n  task:\n    command: x\n    volumes: {command: y}\n", 4, "cannot name a subtask"),
    ("a keyword under subtasks", "command: x\nsubtasks:\n  retry: {command: y}\n", 3, "cannot name a subtask"),
    ("two things to run", "command: x\nexecutable: y\n", 2, "a task runs one thing"),
    ("two tasks of one name", "n:\n  task:\n    command: x\n    a: {command: y, b: {command: z}}\n    c: {command: y, b: {command: z}}\n", 5, "are called 'b'"),
    ("two trees of one name", "a:\n  t: {command: x}\n---\na:\n  t: {command: x}\n", 4, "two trees are called 'a'"),
    # keywords
    ("a keyword misspelt", "command: x\natempts: 3\n", 2, "unknown keyword 'atempts', did you mean 'attempts'?"),
    ("the first keyword misspelt", "comand: x\n", 1, "did you mean 'command'?"),
    ("what to run misspelt", "n:\n  task:\n    executabel: x\n", 3, "did you mean 'executable'?"),
    ("what to run misspelt beside a keyword", "n:\n  task:\n    attempts: 3\n    executabel: x\n", 4, "did you mean 'executable'?"),
    ("a mapping misspelt", "command: x\nretyr: {interval: 3}\n", 2, "did you mean 'retry'?"),
    ("a word inside retry misspelt", "command: x\nretry:\n  intervall: 3\n", 3, "did you mean 'interval'?"),
    ("a word inside resources misspelt", "command: x\nresources:\n  cpu: 3\n", 3, "did you mean 'cpus'?"),
    ("an unknown default", "defaults:\n  atempts: 3\nn:\n  t: {command: x}\n", 2, "did you mean 'attempts'?"),
    ("a default that cannot be one", "defaults:\n  command: y\nn:\n  t: {command: x}\n", 2, "cannot be a default"),
    ("a task's field on a list", "attempts: 3\nsequence: [./a.sh]\n", 1, "belongs to a task"),
    ("commands without a container", "command: x\ncommands: [y]\n", 2, "they run in a container"),
    ("an unknown logger", "command: x\nlogger: sislog\n", 2, "logger: 'sislog' is unknown"),
    ("an unknown package manager", "command: x\nrequires: {gem: [a]}\n", 2, "'gem' is no package manager here"),
    ("an event that does not exist", "command: x\nnotify: [{to: ops, events: [faild]}]\n", 2, "there is no event 'faild'"),
    ("a target that is none", "command: x\nnotify: 'call me'\n", 2, "neither an address nor the name of a webhook"),
    ("stages beside a command", "command: x\nstages: [a]\n", 2, "command and stages are given"),
    ("a stage with nothing to run", "stages:\n  - {name: a}\n", 2, "stages[0]: nothing to run"),
    ("a stage with two things to run", "stages: [{command: a, executable: b}]\n", 1, "a stage runs one thing"),
    ("a misspelt word in a stage", "stages:\n  - {command: a, nmae: b}\n", 2, "unknown keyword 'nmae' in stages[0], did you mean 'name'?"),
    ("two stages of one name", "stages: [{name: a, command: b}, {name: a, command: c}]\n", 1, "two are named 'a'"),
    ("a stage to be fetched", "stages: [{executable: 'https://example.org/x.sh'}]\n", 1, "would have to be fetched"),
    ("for each of a number", "command: x\nfor_each: 3\n", 2, "for_each: expected a mapping or a list, here is 3"),
    ("for each in a shell line", "command: echo ${item}\nfor_each: [1]\n", 1, "would let an item be a command"),
    ("for each of nobody", "n:\n  a: {command: x, for_each: {result_of: b}}\n", 2, "there is no task 'b'"),
    ("item outside for each", "command: [x, \"${item}\"]\n", 1, "there is no parameter 'item'"),
    ("unknown levels", "n:\n  levels: eagre\n  t: {command: x}\n", 2, "did you mean 'eager'?"),
    # values
    ("a number that is a text", "command: x\nattempts: three\n", 2, "expected a whole number, here is the text 'three'"),
    ("a number that is a list", "command: x\nattempts: [3]\n", 2, "here is a list"),
    ("a fraction of an attempt", "command: x\nattempts: 1.5\n", 2, "expected a whole number"),
    ("no attempts", "command: x\nattempts: 0\n", 2, "out of range"),
    ("too many attempts", "command: x\nattempts: 100000\n", 2, "1 to 1000"),
    ("a keyword without a value", "command: x\nattempts:\n", 2, "attempts has no value"),
    ("a word of retry without a value", "command: x\nretry:\n  max:\n", 3, "retry.max has no value"),
    ("no duration", "command: x\nexecution_cap: soon\n", 2, "is not a duration"),
    ("a cap of nothing", "command: x\nexecution_cap: 0\n", 2, "out of range"),
    ("a cap beyond a year", "command: x\nexecution_cap: 400d\n", 2, "at most 366d"),
    ("a negative tolerance", "command: x\ndelay_tolerance: -1\n", 2, "out of range"),
    ("no such tier", "command: x\nresources: regula\n", 2, "did you mean 'regular'?"),
    ("no size", "command: x\nresources: {memory: much}\n", 2, "is not a size"),
    ("negative cpus", "command: x\nresources:\n  cpus: -1\n", 3, "out of range"),
    ("too strong a backoff", "command: x\nretry: {interval: 1,\n  backoff: 1000}\n", 3, "retry.backoff"),
    ("an unknown category", "command: x\ncategory: soon\n", 2, "urgent, delayable or periodic"),
    ("a variable's name", "command: x\nenv:\n  A-B: 1\n", 3, "is not a variable name"),
    ("a variable that is a list", "command: x\nenv:\n  A: [1]\n", 3, "expected a text, here is a list"),
    ("variables as a list", "command: x\nenv: [A=1]\n", 2, "expected a mapping"),
    ("no function", "function: hello\n", 1, 'write "module:name"'),
    ("an infinite number", "command: x\ninput: 1e999\n", 2, "not a finite number"),
    ("a number of five thousand digits", f"command: x\nattempts: {'9' * 5000}\n", 2, "99… (5000 characters)"),
    ("a list that is the result of nobody", "t:\n  a:\n    command: [x]\n    for_each: {result_of: nope}\n", 4, "for_each: there is no task 'nope'"),
    ("a default made of another parameter", "parameters:\n  a: '${b}'\n  b: 1\nt:\n  a: {command: 'x ${a}'}\n", 2, "a default cannot be made of 'b'"),
    ("a list of scalars to merge", "t:\n  a:\n    <<: [1, 2]\n    command: x\n", 3, "merges a mapping"),
    ("a tree that holds itself", "t: &t\n  a: {command: x}\n  b: *t\n", 3, "contains itself"),
    ("a mapping that merges itself", "t: &t\n  <<: *t\n  a: {command: x}\n", 2, "contains itself"),
    ("a set", "t:\n  a: {command: x, input: !!set {a, b}}\n", 2, "the tag '!!set'"),
    ("a version of YAML that is none", "%YAML 3.0\n---\nt:\n  a: {command: x}\n", 1, "not valid YAML"),
    ("a base of sixty", "command: x\nexecution_cap: 1:30\n", 2, "is not a duration"),
    ("a cap of a billion days", "command: x\nexecution_cap: 999999999999d\n", 2, "out of range"),
    ("a huge number", "command: x\ninput: 99999999999999999999999\n", 2, "too large"),
    ("too deep an input", f"command: x\ninput: {'[' * 200}{']' * 200}\n", 2, "nested too deeply"),
    ("brackets without end", "[" * 100_000, 1, "brackets are nested too deeply"),
    ("brackets without end beside a tab", "command: x #\t\ninput: " + "[" * 100_000, 2, "brackets are nested too deeply"),
    ("many brackets left open", "command: x\ninput: " + "[" * 2_900, 3, "not closed"),
    ("a bracket left open in a large file", "# much\n" * 200_000 + "command: [x\n", 200_002, "not closed"),
    ("uneven indentation in a large file", "# much\n" * 200_000 + "a:\n  b: {command: x}\n c: {command: x}\n", 200_003, "check the indentation"),
    ("a tab in a large file", "# much\n" * 200_000 + "a:\n\tb: {command: x}\n", 200_002, "a tab is not allowed"),
    ("a control character in a large file", "# much\n" * 200_000 + "command: a\x01b\n", 200_001, "U+0001"),
    ("no moment", "command: x\nat: tomorrow\n", 2, "is not a moment"),
    ("a moment without a zone", "command: x\nat: 2026-11-15T03:00:00\n", 2, "has no time zone"),
    ("too long a name", f"command: x\nname: {'n' * 300}\n", 2, "is not a name"),
    # schedules
    ("no schedule", "command: x\nschedule: dayly\n", 2, "did you mean 'daily'?"),
    ("no cron expression", "command: x\nschedule: '61 * * * *'\n", 2, "is not a cron expression"),
    ("a negative interval", "command: x\nschedule: -5\n", 2, "out of range"),
    ("overlap without a schedule", "command: x\noverlap: skip\n", 2, "there is no schedule"),
    ("unknown overlap", "command: x\nschedule: daily\noverlap: skipp\n", 3, "did you mean 'skip'?"),
    ("unknown misfire", "command: x\nschedule: daily\nmisfire: some\n", 3, "skip, one, all"),
    ("a schedule on a subtask", "n:\n  task:\n    command: x\n    a: {command: y,\n      schedule: 60}\n", 5, "schedule on a subtask"),
    ("two schedules", "n:\n  a: {command: x, schedule: 5}\n  b: {command: x, schedule: 5}\n", 3, "a schedule already, in line 2"),
    # edges
    ("after nobody", "n:\n  a: {command: x}\n  b: {command: x, after: c}\n", 3, "no task 'c' in this tree"),
    ("after a misspelt name", "n:\n  fetch: {command: x}\n  b:\n    command: x\n    after: [fetsh]\n", 5, "did you mean 'fetch'?"),
    ("an unknown kind", "n:\n  a: {command: x}\n  b:\n    command: x\n    after:\n      - {task: a, when: fail}\n", 6, "did you mean 'failed'?"),
    ("an edge without a task", "n:\n  a: {command: x}\n  b: {command: x, after: [{when: done}]}\n", 3, "the name of the task is missing"),
    ("an unknown word in an edge", "n:\n  a: {command: x}\n  b: {command: x, after: [{tasks: a}]}\n", 3, "did you mean 'task'?"),
    ("after a list in a list", "n:\n  a: {command: x}\n  b: {command: x, after: [[a]]}\n", 3, "expected the name of a task"),
    ("a cycle of two", "n:\n  a: {command: x, after: b}\n  b: {command: x, after: a}\n", 2, "cycle: "),
    ("after itself", "n:\n  a: {command: x}\n  b:\n    command: x\n    after: b\n", 5, "cycle: b → b"),
    ("a subtask after its parent", "n:\n  a:\n    command: x\n    b:\n      command: x\n      after: a\n", 6, "cycle: "),
    ("a sequence that names nobody", "n:\n  sequence: [a, b]\n  a: {command: x}\n", 2, "no task 'b' in this tree"),
    ("a sequence against its edges", "n:\n  sequence: [a, b]\n  a: {command: x, after: b}\n  b: {command: x}\n", 3, "cycle: "),
    ("a sequence that is a text", "command: x\nsequence: a\n", 2, "sequence: expected a list"),
    ("a list in a sequence", "sequence:\n  - [a]\n", 2, "expected a task or the name of one"),
    ("two tasks in one item", "sequence:\n  - a: {command: x}\n    b: {command: y}\n", 2, "an item is one task"),
    # parameters
    ("an unknown parameter", "parameters: {day: 1}\nn:\n  t: {command: 'echo ${dya}'}\n", 3, "did you mean 'day'?"),
    ("a parameter without a value", "parameters:\n  day:\nn:\n  t: {command: x}\n", 2, "--param day=VALUE"),
    ("a parameter that is a list", "parameters:\n  day: [1]\nn:\n  t: {command: x}\n", 2, "expected a text"),
    ("a parameter's name", "parameters:\n  a b: 1\nn:\n  t: {command: x}\n", 2, "is not a name"),
    ("parameters on a subtask", "n:\n  t:\n    command: x\n    parameters: {a: 1}\n", 4, "belong to the file or the tree"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "words"), [case[1:] for case in CORPUS], ids=[case[0] for case in CORPUS])
def test_a_malformed_file_is_answered_with_its_line_and_the_fix(text: str, line: int, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(text, source="bad.yaml")
    error = caught.value
    assert words in str(error)
    assert error.extra["line"] == line, str(error)
    assert error.extra["source"] == "bad.yaml"
    assert error.detail.startswith(f"bad.yaml:{line}:{error.extra['column']}: ")


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len({text for _, text, _, _ in CORPUS}) >= 60


def test_the_column_points_at_the_word_that_is_wrong() -> None:
    with pytest.raises(UnknownField) as caught:
        load("nightly:\n  task:\n    command: x\n    atempts: 3\n", source="demo.yaml")
    assert str(caught.value) == "demo.yaml:4:5: unknown keyword 'atempts', did you mean 'attempts'?"
    with pytest.raises(InvalidInput) as wrong:
        load("command: x\nretry: {interval: 1s, backoff: much}\n")
    assert (wrong.value.extra["line"], wrong.value.extra["column"]) == (2, 32)


def test_a_cycle_is_printed_whole() -> None:
    text = "n:\n  a: {command: x, after: c}\n  b: {command: x, after: a}\n  c: {command: x, after: b}\n"
    with pytest.raises(CyclicGraph) as caught:
        load(text)
    cycle = caught.value.extra["cycle"]
    assert cycle[0] == cycle[-1]
    assert sorted(cycle[1:]) == ["a", "b", "c"]
    assert " → ".join(cycle) in str(caught.value)


def test_aliases_of_aliases_cannot_blow_up_the_reader() -> None:
    lines = ["x-0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"]
    lines += [f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(InvalidInput, match="more than 1000000 values"):
        load("\n".join([*lines, "n:", "  t: {command: x, input: *a9}"]))


def test_a_parameter_that_no_file_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no parameter 'dya' in this file, did you mean 'day'"):
        load("parameters: {day: 1}\nn:\n  t: {command: 'echo ${day}'}\n", params={"dya": "2"})
