"""How long a node is given nothing after it gave back what it was given.

Whoever gives back at once takes nothing for a reason that the planner does not know yet: it drains, or it ends. Leased to it again at
once, one task went back and forth 230 times a second, each time with two commits. So it rests, twice as long each time that it gives back
soon after a rest, and at most a second. A node that held its orders for a while first was given too much and no more: its rest is short.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_S = 0.02
LONGEST_S = 1.0
SOON_S = 0.5  # after a rest


@dataclass
class Rest:
    seconds: float = 0.0
    until: float = 0.0

    def returned(self, now: float) -> float:
        """It gave something back at `now`. Returns how long it rests from now on; 0: it rests already."""
        if now < self.until:
            return 0.0
        soon = self.seconds > 0 and now - self.until < SOON_S
        self.seconds = min(2 * self.seconds, LONGEST_S) if soon else SHORTEST_S
        self.until = now + self.seconds
        return self.seconds
