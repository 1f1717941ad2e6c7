"""`python -m headway.embedded`: an `up` in the background that ends with its last user."""

from __future__ import annotations

import sys

from headway.config import load
from headway.embedded.up import up
from headway.errors import HeadwayError


def main() -> int:
    try:
        return up(load(), while_used=True)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
