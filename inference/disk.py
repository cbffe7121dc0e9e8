"""Whether the disk can hold the files that prediction will write."""

import shutil
from pathlib import Path
from tempfile import TemporaryFile

from runtime.errors import DataError


def check_disk(output: Path, size: int) -> None:
    """Raises DataError if `output` cannot be a writable folder, or its disk has less than `size` bytes free."""
    resolved = output.resolve()
    folder = next(parent for parent in [resolved, *resolved.parents] if parent.exists())
    if not folder.is_dir():
        raise DataError(f"--output {output}: {folder} is not a folder; choose another")
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DataError(f"--output {output}: needs about {size / 1e6:,.1f} MB, but {free / 1e6:,.1f} MB are free")
    try:
        output.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output).close()
    except OSError as error:
        raise DataError(f"--output {output}: cannot be written ({error.strerror})") from error
