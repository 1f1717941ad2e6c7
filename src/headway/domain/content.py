"""What a task runs and what must be there before it runs: sources, images, packages, archives, volumes, secrets, loggers (H1 H2 H5).

`content_of` turns the words of a user into a Content, which is part of the Definition; everything that can be refused is refused
here, before anything is stored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from headway.domain import languages
from headway.errors import InvalidInput

if TYPE_CHECKING:
    from headway.domain.spec import TaskSpec
    from headway.domain.task import Definition

UPLOAD, VOLUME = "upload:", "volume:"
LOGGERS = ("syslog", "journald", "file", "http")
MOST = 1000  # packages, archives, secrets or volumes of one task
LONGEST = 256 * 1024  # of one text: a lock file may be large
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UPLOADED = re.compile(r"upload:([0-9a-f]{64})/([^/\x00-\x1f]{1,200})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?][^\s@#\x00-\x1f]*)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,299}")
_TRANSPORTS = ("dir", "docker-archive", "docker-daemon", "containers-storage", "oci", "oci-archive", "ostree", "sif", "tarball")
_PORT = re.compile(r"[0-9]{1,5}/")  # a registry may be called like one of them
_MANAGERS = ("pip", "npm", "lock")


class ArchiveSpec(msgspec.Struct, forbid_unknown_fields=True):
    """{source: URL, checksum: sha256:..., into: tools}"""

    source: str
    checksum: str | None = None
    into: str = ""


class Archive(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tar or zip file, unpacked into a folder of the prepared place."""

    source: str
    checksum: str = ""
    into: str = ""


class Requires(msgspec.Struct, frozen=True, omit_defaults=True):
    """Packages: requirement specifiers, npm packages, or the text of a package-lock.json."""

    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    lock: str = ""

    def __bool__(self) -> bool:
        return bool(self.pip or self.npm or self.lock)


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a definition that says what must be there before it can run."""

    image: str = ""
    commands: tuple[str, ...] = ()
    checksum: str = ""
    requires: Requires = Requires()
    prepare: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()
    volumes: tuple[str, ...] = ()
    secrets: dict[str, str] = {}  # variable -> name of the secret
    logger: str = ""

    @property
    def prepared(self) -> bool:
        """Whether a place is prepared with packages, archives or a command."""
        return bool(self.requires or self.prepare or self.archives)


def content_of(spec: TaskSpec) -> Content:
    """What the spec says about these things, checked."""
    if spec.commands and not spec.image:
        raise InvalidInput("commands: they run in a container", field="commands", hint="give an image too, or use command")
    content = Content(
        image=_image(spec.image),
        commands=_lines(spec.commands, "commands"),
        checksum=_checksum(spec.checksum, "checksum"),
        requires=_requires(spec.requires),
        prepare=_prepare(spec.prepare),
        archives=tuple(_archive(item) for item in _few(spec.archives, "archives")),
        volumes=_volumes(spec),
        secrets=_secrets(spec.secrets),
        logger=_logger(spec.logger),
    )
    if content.image and content.prepared:
        field = next(name for name in ("requires", "prepare", "archives") if getattr(content, name))
        raise InvalidInput(
            f"{field}: a container has what its image has", field=field, hint="build it into the image, or do it first in commands"
        )
    remote = _check_url(spec.executable or "", "executable")
    if content.checksum and not remote:
        raise InvalidInput("checksum: it goes with an executable that is a URL", field="checksum", hint="an upload's name is one")
    return content


def check_addressed(definition: Definition) -> None:
    """Refuse what only a client can resolve: files of its own machine. The server asks this before it stores a definition."""
    sources = [(definition.executable, "executable"), *((archive.source, "archives") for archive in definition.content.archives)]
    for source, field in sources:
        if source.startswith(UPLOAD) and uploaded(source) is None:
            raise InvalidInput(
                f"{field}: {source[:80]!r} names no upload",
                field=field,
                hint="upload:SHA256/NAME, as `POST /v1/uploads` answers; the command line and the Python client upload files themselves",
            )
        if field == "archives" and "://" not in source and not source.startswith((UPLOAD, VOLUME, "/")):
            raise InvalidInput(
                f"archives: {source[:80]!r} is no source", field=field, hint="a URL, an upload, volume:NAME/path or /path"
            )


def spec_fields(content: Content) -> dict[str, Any]:
    """The fields of a TaskSpec that give this content again."""
    requires = {
        name: list(value) if isinstance(value, tuple) else value for name, value in msgspec.structs.asdict(content.requires).items()
    }
    return {
        "image": content.image or None,
        "commands": list(content.commands) or None,
        "checksum": content.checksum or None,
        "requires": {name: value for name, value in requires.items() if value} or None,
        "prepare": list(content.prepare) or None,
        "archives": [ArchiveSpec(archive.source, archive.checksum or None, archive.into) for archive in content.archives],
        "volumes": list(content.volumes),
        "secrets": dict(content.secrets),
        "logger": content.logger or None,
    }


def labels_needed(spec: TaskSpec, content: Content) -> dict[str, str]:
    """The labels a node must have for this task; an empty value accepts any."""
    found: dict[str, str] = {f"volume/{name}": "" for name in content.volumes}
    if content.image:
        found["container"] = ""
    elif spec.function:
        language = languages.of_function(spec.function, spec.interpreter or "")
        if language is None or (not language.runner and language is not languages.PYTHON):
            word = spec.interpreter or ""
            if language is not None or not _NAME.fullmatch(word):
                raise InvalidInput(
                    f"function: there is no warm runner for {language.name if language else word!r}",
                    field="interpreter" if spec.interpreter else "function",
                    hint="Python, " + ", ".join(sorted(each.name for each in languages.LANGUAGES if each.runner)),
                )
            found[f"runner/{word}"] = ""  # one that an operator added
        elif language is not languages.PYTHON:
            found[language.runner_label] = ""
    elif spec.executable:
        language = languages.chosen(spec.executable, spec.interpreter or "")
        if language is not None and not language.everywhere:
            found[language.label] = ""
    return found


def needs_preparation(definition: Definition) -> bool:
    """Whether something must be fetched, built or installed on the node before it can start."""
    content = definition.content
    if content.prepared or content.image:
        return True
    if not definition.executable:
        return False
    language = languages.chosen(definition.executable, definition.interpreter)
    return definition.executable.startswith((UPLOAD, "http://", "https://")) or bool(language and language.build)


def runner_kind(definition: Definition) -> str:
    """Which warm runners may call the function: those of its language, with its packages. Empty: it is no function."""
    if not definition.function:
        return ""
    language = languages.of_function(definition.function, definition.interpreter)
    name = language.name if language else definition.interpreter
    content = definition.content
    own = () if language is languages.PYTHON else (definition.env, definition.workdir, content.secrets)
    if not content.prepared and not any(own):
        return name
    place = msgspec.json.encode((content.requires, content.prepare, content.archives, own), order="deterministic")
    return f"{name}+{hashlib.blake2b(place, digest_size=8).hexdigest()}"


def uploaded(source: str) -> tuple[str, str] | None:
    """(SHA-256, file name) of an upload, or None."""
    found = _UPLOADED.fullmatch(source)
    return (found[1], found[2]) if found and found[2] not in (".", "..") else None


def on_volume(source: str) -> tuple[str, str] | None:
    """(volume, path inside it), or None for another kind of source."""
    if not source.startswith(VOLUME):
        return None
    name, _, path = source.removeprefix(VOLUME).partition("/")
    return name, path


def file_name(source: str) -> str:
    """What the fetched file is called: its suffix says what it is."""
    if found := uploaded(source):
        return found[1]
    path = re.split(r"[?#]", source, maxsplit=1)[0] if "://" in source else source
    name = path.rpartition("/")[2]
    clean = re.sub(r"[^A-Za-z0-9._+-]", "_", name)[:200]
    return clean if clean.strip(".") else "content"


def _check_url(source: str, field: str) -> bool:
    if "://" not in source:
        return False
    if not source.startswith(("http://", "https://")):
        raise InvalidInput(f"{field}: {source[:80]!r} has an unknown scheme", field=field, hint="http://, https://, or a path")
    if not _URL.fullmatch(source):  # also refuses a user and a password in it: they would be shown to everybody
        raise InvalidInput(
            f"{field}: {source[:80]!r} is not a URL we fetch", field=field, hint="https://host/path, without a password"
        )
    return True


def _image(image: str | None) -> str:
    if image is None:
        return ""
    transport, _, rest = image.partition(":")
    if not _IMAGE.fullmatch(image) or (transport in _TRANSPORTS and not _PORT.match(rest)):  # those would read files of the node
        raise InvalidInput(
            f"image: {image[:60]!r} is not the name of an image", field="image", hint="for example debian:bookworm-slim"
        )
    return image


def _lines(given: list[str] | str | None, field: str) -> tuple[str, ...]:
    lines = [given] if isinstance(given, str) else _few(given or [], field)
    for line in lines:
        _text(line, field)
        if not line.strip():
            raise InvalidInput(f"{field}: a line is empty", field=field)
    return tuple(lines)


def _prepare(given: list[str] | str | None) -> tuple[str, ...]:
    """A text is a shell's, a list is a program with its arguments."""
    if isinstance(given, str):
        return ("/bin/sh", "-c", _text(given, "prepare")) if given.strip() else ()
    words = tuple(_text(word, "prepare") for word in _few(given or [], "prepare"))
    if words and not words[0]:
        raise InvalidInput("prepare: the name of the program is empty", field="prepare")
    return words


def _checksum(given: str | None, field: str) -> str:
    if given is None:
        return ""
    if not _DIGEST.fullmatch(given):
        raise InvalidInput(f"{field}: {given[:80]!r} is not a checksum", field=field, hint="sha256: and 64 hexadecimal digits")
    return given


def _archive(item: str | ArchiveSpec) -> Archive:
    spec = ArchiveSpec(item) if isinstance(item, str) else item
    source, into = _text(spec.source, "archives.source"), _text(spec.into, "archives.into")
    _check_url(source, "archives")
    if into.startswith("/") or ".." in into.split("/"):
        raise InvalidInput(
            f"archives.into: {into[:60]!r} leaves the folder", field="archives.into", hint="a folder inside, such as tools"
        )
    return Archive(source, _checksum(spec.checksum, "archives.checksum"), into)


def _requires(given: Any) -> Requires:
    """A list is for pip; a mapping says the manager; a text is a requirements.txt or a package-lock.json."""
    if given is None:
        return Requires()
    if isinstance(given, str):
        return _requires_text(given)
    if isinstance(given, list):
        return Requires(pip=_pip(given))
    if "lockfileVersion" in given or "packages" in given:  # a package-lock.json as it is
        return Requires(lock=_json(given, "requires"))
    for name in given:
        if name not in _MANAGERS:
            raise InvalidInput(
                f"requires: {name[:40]!r} is no package manager here", field="requires", hint="pip or npm, or use prepare"
            )
    lock = given.get("lock", "")
    pip, npm = given.get("pip", []), given.get("npm", [])
    if isinstance(npm, dict) and ("lockfileVersion" in npm or "packages" in npm):
        lock, npm = npm, []
    return Requires(pip=_pip(pip), npm=_npm(npm), lock=lock if isinstance(lock, str) else _json(lock, "requires.lock"))


def _requires_text(text: str) -> Requires:
    _text(text, "requires")
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"requires: the text is not JSON: {error}", field="requires") from None
        if isinstance(value, dict | list):
            return _requires(value)
    return Requires(pip=_pip(text))


def _pip(given: Any) -> tuple[str, ...]:
    """Requirement specifiers, the lines of a requirements.txt, or [{"name", "version"}] as other tools extract them."""
    if isinstance(given, str):
        _text(given, "requires.pip")
        lines = (re.split(r"(?:^|\s)#", line)[0].strip() for line in given.replace("\\\n", " ").splitlines())
        given = [line for line in lines if line]
    found = []
    for item in _few(given, "requires.pip"):
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            item = f"{item['name']}=={item['version']}" if item.get("version") else item["name"]
        if not isinstance(item, str) or not item.strip():
            raise InvalidInput("requires.pip: expected requirements such as requests==2.32", field="requires.pip")
        found.append(_no_options(_text(item.strip(), "requires.pip")))
    return tuple(found)


def _no_options(line: str) -> str:
    """Options would let a list of packages write files or choose an index; only hashes are part of a requirement."""
    if line.startswith("-") or any(word.startswith("-") and not word.startswith("--hash=") for word in line.split()):
        raise InvalidInput(
            f"requires.pip: {line[:60]!r} is an option", field="requires.pip", hint="packages only; --hash=sha256:... is allowed"
        )
    return line


def _npm(given: Any) -> tuple[str, ...]:
    pairs = [f"{name}@{version}" for name, version in given.items()] if isinstance(given, dict) else _few(given, "requires.npm")
    for item in pairs:
        if not isinstance(item, str) or not item.strip() or item.startswith("-"):
            raise InvalidInput("requires.npm: expected packages such as left-pad@1.3.0", field="requires.npm")
        _text(item, "requires.npm")
    return tuple(sorted(pairs))


def _volumes(spec: TaskSpec) -> tuple[str, ...]:
    names = list(_few(spec.volumes, "volumes"))
    for source, field in ((spec.executable or "", "executable"), *((_of(a), "archives") for a in spec.archives)):
        if place := on_volume(source):
            if not place[1] or ".." in place[1].split("/"):
                raise InvalidInput(f"{field}: {source[:80]!r} names no file of a volume", field=field, hint="volume:NAME/path/file")
            names.append(place[0])
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInput(
                f"volumes: {str(name)[:40]!r} is not the name of a volume", field="volumes", hint="letters, digits, . _ -"
            )
    return tuple(sorted(set(names)))


def _of(archive: str | ArchiveSpec) -> str:
    return archive if isinstance(archive, str) else archive.source


def _secrets(given: list[str] | dict[str, str]) -> dict[str, str]:
    """[NAME] is the variable NAME; {VARIABLE: name} gives it another."""
    pairs = given if isinstance(given, dict) else {name.upper().replace("-", "_").replace(".", "_"): name for name in given}
    for variable, name in pairs.items():
        check_secret_name(name, "secrets")
        if not _ENV_NAME.fullmatch(variable) or variable.startswith("HEADWAY_"):
            raise InvalidInput(f"secrets: {variable!r} is not a variable name", field="secrets", hint="write {VARIABLE: name}")
    if len(pairs) > MOST:
        raise InvalidInput(f"secrets: {len(pairs)} are too many", field="secrets", hint=f"at most {MOST}")
    return dict(sorted(pairs.items()))


def check_secret_name(name: str, field: str = "name") -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{field}: {name[:40]!r} is not the name of a secret", field=field, hint="letters, digits, . _ -; at most 100"
        )


def _logger(given: str | None) -> str:
    if given is None:
        return ""
    _text(given, "logger")
    kind, _, rest = given.partition(":")
    if given in ("syslog", "journald"):
        return given
    if kind == "file" and rest and not rest.startswith("//") and ".." not in rest.split("/"):
        return given
    if kind in ("http", "https") and _check_url(given, "logger"):
        return given
    raise InvalidInput(
        f"logger: {given[:60]!r} is unknown", field="logger", hint="syslog, journald, file:NAME, or http(s)://host/path"
    )


def _few(given: Iterable[Any], field: str) -> list[Any]:
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{field}: expected a list", field=field)
    if len(given) > MOST:
        raise InvalidInput(f"{field}: {len(given)} are too many", field=field, hint=f"at most {MOST}")
    return list(given)


def _text(text: str, field: str) -> str:
    if len(text) > LONGEST or "\0" in text:
        raise InvalidInput(f"{field}: a text is too long or has a NUL in it", field=field, hint=f"at most {LONGEST} characters")
    return text


def _json(value: Any, field: str) -> str:
    return _text(json.dumps(value, sort_keys=True, separators=(",", ":")), field)
