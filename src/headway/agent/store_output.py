"""The process that puts one whole output into the object store; its exit code tells whether it is there (H9).

Arguments: the store's URL, the task, the attempt, the file.
"""

from __future__ import annotations

import sys

from headway.wire.objects import key_of, open_store


def main() -> None:
    url, task, attempt, path = sys.argv[1:]
    import obstore

    with open(path, "rb") as file:
        obstore.put(open_store(url), key_of(int(task), int(attempt)), file)
