"""What a container has used so far, as its cgroups tell, in version 1 or 2 (G3 H2)."""

from __future__ import annotations


class Use:
    def __init__(self, groups: dict[str, str]) -> None:
        """The folders of its groups, as container_group finds them."""
        self._groups = groups

    def now(self) -> dict[str, int]:
        """By names that the agent knows (sandbox.told), and `kills` by the kernel for its memory."""
        return {
            "peak": self._figure("memory", "memory.max_usage_in_bytes") or self._figure("memory", "memory.peak"),
            "kills": self._figure("memory", "memory.oom_control", "oom_kill") or self._figure("memory", "memory.events", "oom_kill"),
            "cpu-ms": self._cpu_ms(),
            "read": self._bytes("Read", "rbytes"),
            "written": self._bytes("Write", "wbytes"),
        }

    def file(self, controller: str, name: str) -> str | None:
        group = self._groups.get(controller) or self._groups.get("")
        return f"{group}/{name}" if group is not None else None

    def _cpu_ms(self) -> int:
        spent_ns = self._figure("cpuacct", "cpuacct.usage")
        return spent_ns // 1_000_000 if spent_ns else self._figure("cpu", "cpu.stat", "usage_usec") // 1000

    def _bytes(self, word: str, key: str) -> int:
        lines = self._lines("blkio", "blkio.throttle.io_service_bytes")
        if lines:
            return sum(int(line.split()[2]) for line in lines if line.split()[1:2] == [word])
        words = [word for line in self._lines("io", "io.stat") for word in line.split()]
        return sum(int(each.partition("=")[2]) for each in words if each.startswith(f"{key}="))

    def _figure(self, controller: str, name: str, key: str = "") -> int:
        for line in self._lines(controller, name):
            words = line.split()
            if words and (words[0] == key or not key) and words[-1].isdigit():
                return int(words[-1])
        return 0

    def _lines(self, controller: str, name: str) -> list[str]:
        if (path := self.file(controller, name)) is None:
            return []
        try:
            with open(path) as file:
                return file.read().splitlines()
        except OSError:
            return []
