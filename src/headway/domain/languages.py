"""Which program runs which kind of file: one table, used by admission, by nodes that announce what they have, and by agents (H1).

To add a language, add a row. `suffixes` choose it, `run` starts a file, `build` makes a program of a file first (once for each
content, on each node), and a node where `run[0]` (or `build[0]`) is on the PATH announces the label `interpreter/NAME` with its
version, so that a task of this language goes only to such nodes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    name: str
    suffixes: tuple[str, ...] = ()
    run: tuple[str, ...] = ()  # the program and its options, in front of the file
    build: tuple[str, ...] = ()  # compiled: {source} and {program} are filled in
    version: tuple[str, ...] = ("--version",)
    everywhere: bool = False  # every node that runs an agent has it: no label is asked for
    runner: tuple[str, ...] = ()  # what calls its functions in a warm process; {runners} is the folder of our runners

    @property
    def program(self) -> str:
        """What must be on a node's PATH."""
        return (self.build or self.run)[0]

    @property
    def label(self) -> str:
        return f"interpreter/{self.name}"

    @property
    def runner_label(self) -> str:
        return f"runner/{self.name}"


LANGUAGES = (
    Language("python", (".py", ".pyz"), ("python3",), everywhere=True),
    Language("sh", (".sh",), ("sh",), version=(), everywhere=True),
    Language("bash", (".bash",), ("bash",)),
    Language("zsh", (".zsh",), ("zsh",)),
    Language("node", (".js", ".mjs", ".cjs"), ("node",), runner=("node", "{runners}/node.mjs")),
    Language("deno", (".ts",), ("deno", "run")),
    Language("java", (".java",), ("java",), version=("-version",), runner=("sh", "{runners}/java.sh")),
    Language("jar", (".jar",), ("java", "-jar"), version=("-version",)),
    Language("go", (".go",), build=("go", "build", "-o", "{program}", "{source}"), version=("version",)),
    Language("rust", (".rs",), build=("rustc", "-O", "-o", "{program}", "{source}")),
    Language("c", (".c",), build=("cc", "-O2", "-o", "{program}", "{source}", "-lm")),
    Language("c++", (".cc", ".cpp", ".cxx"), build=("c++", "-O2", "-o", "{program}", "{source}")),
    Language("perl", (".pl",), ("perl",), version=("-e", 'printf "%vd\\n", $^V'), runner=("perl", "{runners}/perl.pl")),
    Language("ruby", (".rb",), ("ruby",)),
    Language("php", (".php",), ("php",)),
    Language("r", (".r",), ("Rscript",)),
    Language("tcl", (".tcl",), ("tclsh",), version=()),
    Language("lua", (".lua",), ("lua",), version=("-v",)),
    Language("julia", (".jl",), ("julia",)),
    Language("awk", (".awk",), ("awk", "-f"), version=()),
    Language("powershell", (".ps1",), ("pwsh", "-File")),
)  # fmt: skip
BY_NAME = {language.name: language for language in LANGUAGES}
BY_SUFFIX = {suffix: language for language in LANGUAGES for suffix in language.suffixes}
BY_PROGRAM = {language.program: language for language in reversed(LANGUAGES)}
PYTHON = BY_NAME["python"]


def by_file(path: str) -> Language | None:
    """The language of a file, by its suffix; of a URL, by that of its path."""
    if "://" in path:
        path = path.partition("?")[0].partition("#")[0]
    name = path.rpartition("/")[2]
    dot = name.rfind(".")
    return BY_SUFFIX.get(name[dot:].lower()) if dot > 0 else None


def by_interpreter(text: str) -> Language | None:
    """The language that an `interpreter` names: by our word for it, or by its program."""
    word = text.split()[0] if text.split() else ""
    return BY_NAME.get(word) or BY_PROGRAM.get(word)


def chosen(executable: str, interpreter: str) -> Language | None:
    """The language of an executable as far as its words tell; None when only the file itself can."""
    return by_interpreter(interpreter) if interpreter else by_file(executable)


def of_function(name: str, interpreter: str) -> Language | None:
    """The language of "file:name" or "module:name"; None for one that nobody knows."""
    if interpreter:
        return by_interpreter(interpreter)
    where = name.partition(":")[0]
    found = by_file(where) if "/" in where else None
    return PYTHON if found is None else found
