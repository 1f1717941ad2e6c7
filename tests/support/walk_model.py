"""The model beside an agent's walk by chance: which tasks there are, and what may have become of each after what was done to it."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.stages import Stage
from headway.domain.task import Definition
from headway.wire.exchange import Finished, Output, Ref
from tests.support import walk_task
from tests.support.walk_server import Steered
from tests.support.walk_task import FOREVER_S, line

MIB = 2**20
MAX_OUTPUT = 64 * 1024
MAX_PROCESSES = 24
MEMORY, DISK = 96 * MIB, 8 * MIB
CORES = 2.0
PERL = """
use Fcntl qw(:flock);
sub walk {
    my ($lock, $lines, $seconds, $how) = @_;
    open(my $file, '<', $lock) or die "no lock: $!";
    flock($file, LOCK_EX | LOCK_NB) or die "overlap";
    printf("o%06d \\n", $_) for 1 .. $lines;
    select(undef, undef, undef, $seconds);
    die "exit 3\\n" if $how eq 'fail';
    kill 'KILL', $$ if $how eq 'die';
    return $lines;
}
1;
"""
PROGRAMS, FUNCTIONS = ("command", "script", "staged"), ("function", "async", "perl")


@dataclass
class Plan:
    """What a task does, and how that ends when nobody interferes."""

    kind: str
    form: str
    isolation: str
    steps: list[list[Any]]
    outcome: Outcome | None = Outcome.SUCCEEDED  # None: it goes on until it is ended
    exit_code: int | None = 0
    result: Any = None
    cap_s: float = FOREVER_S
    cpus_milli: int = 100
    disk: int = 0
    slept_s: float = 0.0
    touched: int = 0
    spun_s: float = 0.0

    @property
    def function(self) -> bool:
        return self.form in FUNCTIONS


@dataclass
class Attempt:
    ref: Ref
    plan: Plan
    cancelled: bool = False
    yielded: bool = False
    signalled: bool = False
    ended_with_agent: bool = False  # it was open when the agent was asked to end
    steered: list[Steered] = field(default_factory=list)
    cancelled_ns: int = 2**63


def draw(chance: random.Random, *, sandbox: bool, perl: bool) -> Plan:
    """A task by chance."""
    form = chance.choice((*["command"] * 4, "script", "staged", "function", "function", "async", *["perl"] * perl))
    isolation = "sandbox" if sandbox and form != "perl" and chance.random() < 0.35 else ""
    plan = Plan("well", form, isolation, [])
    kinds = {**_ANYWHERE, **(_OF_PROGRAMS if form in PROGRAMS else {})}
    if form == "perl":
        _perl(plan, chance)
        return plan
    plan.kind = chance.choice([name for name, (weight, _) in kinds.items() for _ in range(weight)])
    for _ in range(chance.randrange(3)):
        plan.steps.append(["say", chance.choice((1, 2)), chance.choice((1, 5, 50)), chance.choice((10, 80))])
    kinds[plan.kind][1](plan, chance)
    if chance.random() < 0.15:
        plan.cpus_milli = chance.choice((1000, 3000))  # so that others wait
    return plan


# --- kinds


def _well(plan: Plan, chance: random.Random) -> None:
    plan.slept_s = chance.choice((0.0, 0.0, 0.05, 0.3, 1.0))
    plan.result = chance.choice((None, 7, {"a": ["é"]}))
    plan.steps += [["rest", plan.slept_s], ["progress", 1, 2]]
    if plan.result is not None:
        plan.steps.append(["give", plan.result])
    plan.steps.append(["say", 1, 1, 10])


def _fail(plan: Plan, chance: random.Random) -> None:
    code = chance.choice((1, 3, 75, 85)) if not plan.function else 3
    plan.steps.append(["end", code])
    plan.exit_code = None if plan.function else code
    plan.outcome = {75: Outcome.TRY_LATER, 85: Outcome.REQUEUED}.get(code, Outcome.ERROR)


def _die(plan: Plan, chance: random.Random) -> None:
    number = chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT))
    plan.steps.append(["die", int(number)])
    plan.outcome, plan.exit_code = (Outcome.RUNNER_CRASHED, None) if plan.function else (Outcome.SIGNAL, 128 + number)


def _long(plan: Plan, chance: random.Random) -> None:
    plan.steps.append(["tick", FOREVER_S])
    plan.outcome = None


def _stubborn(plan: Plan, chance: random.Random) -> None:
    plan.steps.append(["ignore"])
    _long(plan, chance)


def _capped(plan: Plan, chance: random.Random) -> None:
    _long(plan, chance)
    plan.cap_s = chance.choice((0.5, 1.5))
    plan.outcome, plan.exit_code = Outcome.CAP_EXCEEDED, None


def _flood(plan: Plan, chance: random.Random) -> None:
    stream = chance.choice((1, 2))
    plan.steps = [["say", stream, chance.choice((1500, 4000)), chance.choice((20, 80))]]


def _touches(plan: Plan, chance: random.Random) -> None:
    plan.touched, plan.spun_s = 30 * MIB, 0.1
    plan.steps += [["touch", plan.touched], ["spin", plan.spun_s]]


def _swells(plan: Plan, chance: random.Random) -> None:
    plan.steps.append(["swell", 3 * MEMORY])
    plan.outcome, plan.exit_code = Outcome.OUT_OF_MEMORY, None


def _escapes(plan: Plan, chance: random.Random) -> None:
    plan.steps += [["escape", chance.choice(("holds", "leaves"))], ["rest", chance.choice((0.0, 0.2))], ["say", 1, 3, 10]]


def _zombies(plan: Plan, chance: random.Random) -> None:
    plan.steps += [["zombies", 5], ["rest", chance.choice((0.0, 0.2))]]


def _shuts(plan: Plan, chance: random.Random) -> None:
    plan.steps += [["shut"], ["rest", chance.choice((0.0, 0.3))], ["say", 2, 3, 10]]


def _litters(plan: Plan, chance: random.Random) -> None:
    plan.steps += [["litter"], ["save"], ["end", 3]] if chance.random() < 0.5 else [["litter"], ["save"]]
    if plan.steps[-1] == ["end", 3]:
        plan.outcome, plan.exit_code = Outcome.ERROR, 3


def _crowds(plan: Plan, chance: random.Random) -> None:
    plan.steps.append(["crowd"])
    plan.outcome, plan.exit_code = Outcome.TOO_MANY_PROCESSES, None


def _fills(plan: Plan, chance: random.Random) -> None:
    plan.disk = DISK
    plan.steps.append(["fill", 8 * DISK])
    plan.outcome, plan.exit_code = Outcome.DISK_FULL, None


def _missing(plan: Plan, chance: random.Random) -> None:
    plan.form, plan.steps = "missing", []
    plan.outcome, plan.exit_code = Outcome.NOT_STARTABLE, None


def _echoes(plan: Plan, chance: random.Random) -> None:
    plan.steps.append(["echo"])
    plan.result = {"input": "é" * 1000}


_ANYWHERE: dict[str, tuple[int, Any]] = {
    "well": (8, _well), "fail": (3, _fail), "die": (1, _die), "long": (5, _long), "capped": (2, _capped), "flood": (2, _flood),
    "touches": (2, _touches), "swells": (1, _swells),
}  # fmt: skip
_OF_PROGRAMS: dict[str, tuple[int, Any]] = {
    "stubborn": (2, _stubborn), "escapes": (3, _escapes), "zombies": (2, _zombies), "shuts": (2, _shuts), "litters": (2, _litters),
    "crowds": (1, _crowds), "fills": (1, _fills), "missing": (1, _missing), "echoes": (2, _echoes),
}  # fmt: skip


def _perl(plan: Plan, chance: random.Random) -> None:
    lines, seconds = chance.choice((0, 3, 100)), chance.choice((0.0, 0.2, FOREVER_S))
    how = chance.choice(("well", "well", "fail", "die"))
    plan.steps, plan.slept_s, plan.exit_code = [[lines, seconds, how]], seconds, None
    plan.kind, plan.result = f"perl {how}", lines
    plan.outcome = {"well": Outcome.SUCCEEDED, "fail": Outcome.ERROR, "die": Outcome.RUNNER_CRASHED}[how]
    if seconds == FOREVER_S:
        plan.outcome = None


# --- as the agent gets it


def definition(plan: Plan, lock: str, folder: Path) -> tuple[Definition, bytes]:
    """What it is, and its input. `folder` is one that sandboxes see."""
    resources = Resources(cpus_milli=plan.cpus_milli, memory=MEMORY, disk=plan.disk)
    common: dict[str, Any] = {"name": plan.kind, "resources": resources, "cap_ms": round(plan.cap_s * 1000)}
    common |= {"isolation": plan.isolation, "tenant": 7 if plan.isolation else 0}
    program = folder / "walk_task.py"
    data = json.dumps(plan.result).encode() if plan.kind == "echoes" else b""
    if plan.form in ("function", "async"):
        name = "work" if plan.form == "function" else "later"
        return Definition(function=f"walk_task:{name}", **common), json.dumps([lock, plan.steps]).encode()
    if plan.form == "perl":
        return Definition(function=f"{folder}/walk.pl:walk", **common), json.dumps([lock, *plan.steps[0]]).encode()
    if plan.form == "missing":
        return Definition(command=(f"{folder}/nobody",), **common), data
    words = (sys.executable, "-I", "-S", str(program), lock)
    if plan.form == "script":
        return Definition(executable=str(program), args=(lock, json.dumps(plan.steps)), **common), data
    if plan.form == "staged":
        first = Stage("first", (*words, json.dumps([["rest", 0.02]])))
        return Definition(stages=(first, Stage("second", (*words, json.dumps(plan.steps)))), **common), data
    return Definition(command=(*words, json.dumps(plan.steps)), **common), data


def prepare(folder: Path) -> None:
    """The program and the functions, where sandboxes see them."""
    folder.chmod(0o755)
    (folder / "walk_task.py").write_text(Path(walk_task.__file__).read_text())
    (folder / "walk.pl").write_text(PERL)


# --- what may have become of it


def possible(attempt: Attempt, *, runners_harmed: bool) -> set[Outcome]:
    """The outcomes that fit to what was done to it."""
    plan = attempt.plan
    found = {plan.outcome} if plan.outcome is not None else set()
    found |= {Outcome.CANCELLED} if attempt.cancelled else set()
    found |= {Outcome.PRE_EMPTED} if attempt.yielded or attempt.ended_with_agent else set()
    found |= {Outcome.SIGNAL} if attempt.signalled and not plan.function else set()
    if plan.function and runners_harmed:  # it was killed, or ended for another task, or a result was lost in it
        found |= {Outcome.RUNNER_CRASHED, Outcome.PRE_EMPTED, Outcome.NOT_STARTABLE}
    return {each for each in found if each is not None}


def complaints(attempt: Attempt, end: Finished, pieces: dict[int, Output], *, runners_harmed: bool) -> list[str]:
    """What cannot be, of how it ended and of what it said."""
    plan, found = attempt.plan, []
    outcome = Outcome(end.outcome)
    allowed = possible(attempt, runners_harmed=runners_harmed)
    if outcome not in allowed:
        found.append(f"ended as {outcome.word}, and could only have as {sorted(each.word for each in allowed)}")
    by_itself = outcome is plan.outcome
    if by_itself and not attempt.signalled and plan.exit_code is not None and end.exit_code != plan.exit_code and not plan.function:
        found.append(f"its exit code is {end.exit_code}, not {plan.exit_code}")
    if outcome is Outcome.SUCCEEDED:
        said = json.loads(end.result) if end.result is not None else None
        if said != plan.result:
            found.append(f"its result is {said!r}, not {plan.result!r}")
    if outcome is Outcome.CAP_EXCEEDED and end.ended_ms - end.started_ms < plan.cap_s * 1000 - 20:
        found.append(f"its cap of {plan.cap_s} s was over after {end.ended_ms - end.started_ms} ms")
    found += _use(plan, end, by_itself=by_itself and outcome is Outcome.SUCCEEDED)
    whole = (Outcome.SUCCEEDED, Outcome.ERROR, Outcome.TRY_LATER, Outcome.REQUEUED)
    found += _output(plan, pieces, whole=by_itself and outcome in whole)
    return found + _stood_still(attempt, pieces)


def _use(plan: Plan, end: Finished, *, by_itself: bool) -> list[str]:
    found, wall_ms = [], end.ended_ms - end.started_ms
    if wall_ms < 0:
        found.append(f"it took {wall_ms} ms")
    if by_itself and wall_ms < plan.slept_s * 1000 - 20:
        found.append(f"it slept {plan.slept_s} s in {wall_ms} ms")
    if end.cpu_ms is not None and end.cpu_ms > (wall_ms + 100) * CORES:
        found.append(f"it used {end.cpu_ms} ms of CPU in {wall_ms} ms")
    if by_itself and plan.spun_s and (end.cpu_ms or 0) < plan.spun_s * 1000 - 20:
        found.append(f"it used only {end.cpu_ms} ms of CPU")
    if by_itself and plan.touched and (end.max_memory or 0) < plan.touched:
        found.append(f"it touched {plan.touched} bytes, and {end.max_memory} were seen")
    if end.max_memory is not None and not plan.function and end.max_memory > 2 * MEMORY:
        found.append(f"it used {end.max_memory} bytes of {MEMORY}")
    return found


# --- what it said

_TICK = re.compile(rb"^(t\d{6}) (\d+)$", re.MULTILINE)
# Of an interpreter, or of what makes the sandbox, when it was ended.
_LAST_WORDS = re.compile(rb"Traceback \(most|Fatal Python error: |perl (was killed|exited)|bwrap: Creating new namespace failed: ")
_CUT = re.compile(rb"\n\[headway: (\d+) bytes of output were cut here\]\n")
_UNSAVED = re.compile(rb"^\[headway: the (last )?checkpoint was not saved: [^\n]*\]\n", re.MULTILINE)


def expected(plan: Plan) -> dict[int, bytes]:
    """All that it says, stdout and stderr; ticks are not in it."""
    if plan.form == "perl":
        return {1: "".join(line("o", n + 1, 0) for n in range(plan.steps[0][0])).encode(), 2: b""}
    said, count = {1: "", 2: ""}, {1: 0, 2: 0}
    for name, *arguments in plan.steps:
        if name == "progress":
            said[1] += f"headway progress {arguments[0]}/{arguments[1]} on\n"
        if name == "say":
            stream, lines, width = arguments
            for _ in range(lines):
                count[stream] += 1
                said[stream] += line("-oe"[stream], count[stream], width)
    return {stream: text.encode() for stream, text in said.items()}


def text_of(pieces: dict[int, Output], stream: int) -> bytes:
    return b"".join(pieces[number].data for number in sorted(pieces) if pieces[number].stream == stream)


def _output(plan: Plan, pieces: dict[int, Output], *, whole: bool) -> list[str]:
    found = []
    if sorted(pieces) != list(range(1, len(pieces) + 1)):
        found.append(f"pieces of its output are missing: {sorted(pieces)}")
    cut = 0
    for stream, wanted in expected(plan).items():
        text = text_of(pieces, stream)
        if stream == 2:
            cut = sum(int(each[1]) for each in _CUT.finditer(text_of(pieces, 2)))
            text = _UNSAVED.sub(b"", _CUT.sub(b"", text))
        text = text.partition(b"t000001 ")[0]  # ticks come last
        if not whole:
            text = _LAST_WORDS.split(text)[0]
        if not _fits(text, wanted, whole=whole, cut=cut or len(wanted) > MAX_OUTPUT // 2):
            said = f"{text[:200]!r}...{text[-200:]!r} ({len(text)} bytes)"
            found.append(f"it said on {stream} {said} instead of {wanted[:100]!r}... ({len(wanted)} bytes)")
    if whole and cut and sum(len(text_of(pieces, stream)) for stream in (1, 2)) > MAX_OUTPUT + 200:
        found.append("more of its output was kept than is allowed")
    if whole and plan.kind == "flood":
        kept, total = 0, sum(map(len, expected(plan).values()))
        kept = sum(len(_CUT.sub(b"", text_of(pieces, stream))) for stream in (1, 2))
        if kept + cut != total:
            found.append(f"of {total} bytes {kept} were kept and {cut} were cut")
    return found


def _fits(text: bytes, wanted: bytes, *, whole: bool, cut: object) -> bool:
    """The beginning and, when it is whole, the end too, with a gap only where something was cut."""
    if text == wanted:
        return True
    if not whole and not cut:
        return wanted.startswith(text)
    if not cut:
        return False
    same = next((at for at in range(min(len(text), len(wanted))) if text[at] != wanted[at]), min(len(text), len(wanted)))
    return wanted.endswith(text[same:]) or not whole


def _stood_still(attempt: Attempt, pieces: dict[int, Output]) -> list[str]:
    """It said nothing between the answer to a pause and what ended that."""
    found = []
    ticks = [int(each[2]) for each in _TICK.finditer(text_of(pieces, 1))]
    if any(later <= earlier for earlier, later in pairwise(ticks)):
        found.append("its ticks came out of order")
    pauses = [each for each in attempt.steered if each.answer == "paused"]
    for pause in pauses:
        later = [each.asked_ns for each in attempt.steered if each.control.number > pause.control.number]
        end = min([attempt.cancelled_ns, *later])
        moved = [tick for tick in ticks if pause.answered_ns < tick < end]
        if moved:
            found.append(f"it went on {(moved[0] - pause.answered_ns) / 1e6:.1f} ms after it was paused, {len(moved)} ticks")
    return found
