"""Messages that cross a process border, versioned.

PROTOCOL rises with every change that an older peer would misread; peers that differ refuse each other with `version_mismatch`.
"""

PROTOCOL = 1
PROTOCOL_HEADER = "headway-protocol"
