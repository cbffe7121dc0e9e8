"""The folder `model/` of a run: the best network so far, never the last one."""

import copy
from contextlib import suppress
from pathlib import Path

from huggingface_hub import PyTorchModelHubMixin

from runtime.console import say
from runtime.files import WRITE_ERRORS, replace_files


class BestModel:
    """The files of the best model, each replaced atomically.

    If the disk refuses them, they stay in memory for a retry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._refused: tuple[PyTorchModelHubMixin, str] | None = None

    def save(self, network: PyTorchModelHubMixin, card: str) -> bool:
        """Write `network` and its model card; returns whether both are on disk, and prints a line if not."""
        self._refused = None
        try:
            self._write(network, card)
        except WRITE_ERRORS as error:
            say(f"{self.folder} could not be written ({error}); training goes on, and tries again at every checkpoint")
            self._refused = copy.deepcopy(network).cpu(), card  # type: ignore[attr-defined]  # also a Module
        return self._refused is None

    def is_saved(self) -> bool:
        """Whether the best network is on disk; if the disk refused it, it is written again first."""
        if self._refused is not None:
            with suppress(*WRITE_ERRORS):
                self._write(*self._refused)
                self._refused = None
        return self._refused is None

    def _write(self, network: PyTorchModelHubMixin, card: str) -> None:
        with replace_files(self.folder) as folder:
            network.save_pretrained(folder)
            (folder / "README.md").write_text(card, encoding="utf-8", errors="backslashreplace")
