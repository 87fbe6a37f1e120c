"""Removes attempts' working directories apart from the loop: a million files take seconds."""

import shutil
from concurrent.futures import ThreadPoolExecutor


class Workdirs:
    """What an agent that was killed has left is removed when it starts again."""

    def __init__(self) -> None:
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="workdirs")

    def remove(self, folder: str) -> None:
        """Remove a folder that nobody uses any more; symbolic links are not followed."""
        self._remover.submit(shutil.rmtree, folder, True)

    def close(self) -> None:
        """Wait until all are removed."""
        self._remover.shutdown()
