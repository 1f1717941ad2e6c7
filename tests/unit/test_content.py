"""What a task says it needs: every word is checked before anything is stored (H1 H2 H5 A8)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.control.actions import as_spec
from headway.domain import languages
from headway.domain.content import check_addressed, needs_preparation, runner_kind
from headway.domain.define import define
from headway.domain.spec import TaskSpec
from headway.domain.task import Definition
from headway.errors import InvalidInput

HASH = "a" * 64


def defined(**fields: Any) -> Definition:
    return define(msgspec.convert(fields, TaskSpec))


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"executable": "a.py"}, {}),
        ({"executable": "a.sh"}, {}),
        ({"command": ["node", "a.js"]}, {}),
        ({"executable": "/x/a.js"}, {"interpreter/node": ""}),
        ({"executable": "https://example.org/a.rb?x=1.py"}, {"interpreter/ruby": ""}),
        ({"executable": "a", "interpreter": "ruby -w"}, {"interpreter/ruby": ""}),
        ({"executable": "a", "interpreter": "/opt/own/thing"}, {}),
        ({"executable": "volume:data/a.go"}, {"interpreter/go": "", "volume/data": ""}),
        ({"executable": "a.sh", "volumes": ["b", "a"]}, {"volume/a": "", "volume/b": ""}),
        ({"image": "debian:12"}, {"container": ""}),
        ({"image": "oci:5000/debian:12"}, {"container": ""}),
        ({"function": "module:name"}, {}),
        ({"function": "/x/a.mjs:name"}, {"runner/node": ""}),
        ({"function": "Own.Class:name", "interpreter": "java"}, {"runner/java": ""}),
        ({"function": "x:y", "interpreter": "cobol"}, {"runner/cobol": ""}),
        ({"executable": "a.js", "resources": {"labels": {"interpreter/node": "20"}}}, {"interpreter/node": "20"}),
    ],
)
def test_a_task_goes_only_where_it_can_run(fields: dict[str, Any], labels: dict[str, str]) -> None:
    found = dict(defined(**fields).resources.labels)
    assert {name: value for name, value in found.items() if not name.startswith("isolation")} == labels


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"executable": "ftp://host/x"}, "executable", "unknown scheme"),
        ({"executable": "https://user:pass@host/x"}, "executable", "not a URL we fetch"),
        ({"executable": "a.sh", "checksum": f"sha256:{HASH}"}, "checksum", "goes with an executable that is a URL"),
        ({"executable": "https://host/x", "checksum": "md5:1"}, "checksum", "is not a checksum"),
        ({"command": "x", "commands": ["y"]}, "commands", "they run in a container"),
        ({"image": "-v/:/host"}, "image", "not the name of an image"),
        ({"image": "docker-archive:/srv/private.tar"}, "image", "not the name of an image"),
        ({"image": "dir:/var/lib/x"}, "image", "not the name of an image"),
        ({"image": "a", "command": "x"}, "image", "a task runs one thing"),
        ({"image": "a", "requires": ["x"]}, "requires", "a container has what its image has"),
        ({"image": "a", "prepare": "x"}, "prepare", "a container has what its image has"),
        ({"image": "a", "archives": ["/x.tar"]}, "archives", "a container has what its image has"),
        ({"command": "x", "requires": {"gem": ["a"]}}, "requires", "no package manager"),
        ({"command": "x", "requires": ["--find-links=/evil"]}, "requires.pip", "is an option"),
        ({"command": "x", "requires": ["a --target=/"]}, "requires.pip", "is an option"),
        ({"command": "x", "requires": {"npm": ["--prefix=/"]}}, "requires.npm", "expected packages"),
        ({"command": "x", "archives": [{"source": "/a", "into": "../up"}]}, "archives.into", "leaves the folder"),
        ({"command": "x", "archives": [{"source": "/a", "into": "/etc"}]}, "archives.into", "leaves the folder"),
        ({"executable": "volume:data/../../etc/passwd"}, "executable", "names no file of a volume"),
        ({"command": "x", "volumes": ["../x"]}, "volumes", "not the name of a volume"),
        ({"command": "x", "secrets": ["a b"]}, "secrets", "not the name of a secret"),
        ({"command": "x", "secrets": {"HEADWAY_TOKEN": "a"}}, "secrets", "not a variable name"),
        ({"command": "x", "logger": "file:../../x"}, "logger", "is unknown"),
        ({"command": "x", "logger": "sislog"}, "logger", "is unknown"),
        ({"function": "a:b", "interpreter": "go"}, "interpreter", "no warm runner"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as error:
        defined(**fields)
    assert error.value.field == field


@pytest.mark.parametrize("executable", ["upload:./a.py", f"upload:{HASH}", f"upload:{HASH}/..", f"upload:{HASH}/a/b"])
def test_only_the_address_of_an_upload_is_stored(executable: str) -> None:
    with pytest.raises(InvalidInput, match="names no upload"):
        check_addressed(defined(executable=executable))
    check_addressed(defined(executable=f"upload:{HASH}/a.py"))


@pytest.mark.parametrize(
    ("requires", "pip"),
    [
        (["a==1", "b"], ("a==1", "b")),
        ("# comment\na==1  # why\n\nb>2\n", ("a==1", "b>2")),
        ([{"name": "a", "version": "1"}, {"name": "b"}], ("a==1", "b")),
        ('[{"name": "a", "version": "1"}]', ("a==1",)),
        ({"pip": "a==1 --hash=sha256:00\n"}, ("a==1 --hash=sha256:00",)),
    ],
)
def test_lists_that_other_tools_extract_are_taken(requires: Any, pip: tuple[str, ...]) -> None:
    assert defined(command="x", requires=requires).content.requires.pip == pip


def test_a_package_lock_is_taken_as_it_is() -> None:
    lock = {"lockfileVersion": 3, "packages": {"": {"dependencies": {"a": "1"}}}}
    for said in (lock, {"npm": lock}, msgspec.json.encode(lock).decode()):
        assert msgspec.json.decode(defined(command="x", requires=said).content.requires.lock) == lock


def test_a_definition_can_be_said_again() -> None:
    """A dead letter that is edited keeps everything else (F4)."""
    first = defined(
        executable=f"upload:{HASH}/a.js", requires={"npm": ["x@1"]}, prepare="make", archives=[{"source": "/t.tgz", "into": "t"}],
        volumes=["data"], secrets={"A": "b"}, logger="syslog",
    )  # fmt: skip
    assert define(as_spec(first)).content == first.content


def test_runners_are_shared_by_tasks_of_one_language_and_one_set_of_packages() -> None:
    plain, other = defined(function="m:f"), defined(function="m:g", env={"A": "1"})
    packed = defined(function="m:f", requires=["a"])
    assert runner_kind(plain) == runner_kind(other) == "python"
    assert runner_kind(packed).startswith("python+")
    assert runner_kind(packed) == runner_kind(defined(function="m:h", requires=["a"]))
    foreign, with_env = defined(function="/a.mjs:f"), defined(function="/a.mjs:f", env={"A": "1"})
    assert runner_kind(foreign) == "node"
    assert runner_kind(with_env) not in ("node", runner_kind(packed))
    assert runner_kind(defined(command="x")) == ""


def test_what_must_be_made_first() -> None:
    assert needs_preparation(defined(executable="a.c"))
    assert needs_preparation(defined(executable="https://host/a.sh"))
    assert needs_preparation(defined(command="x", prepare="make"))
    assert needs_preparation(defined(image="a"))
    assert not needs_preparation(defined(executable="a.py"))
    assert not needs_preparation(defined(executable="a.c", interpreter="tcc -run"))


def test_every_language_has_a_program_and_no_two_a_suffix() -> None:
    suffixes = [suffix for language in languages.LANGUAGES for suffix in language.suffixes]
    assert len(suffixes) == len(set(suffixes))
    assert all(language.program for language in languages.LANGUAGES)
