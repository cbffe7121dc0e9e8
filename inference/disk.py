"""Whether the disk can hold the files that prediction will write."""

import shutil
from pathlib import Path
from tempfile import TemporaryFile

from runtime.errors import DataError


def check_disk(output: Path, size: int) -> None:
    """Make the folder `output`. Raises DataError if it takes no files or its disk has less than `size` bytes free."""
    is_new = not output.exists()
    try:
        output.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output).close()
    except OSError as error:
        raise DataError(f"--output {output}: cannot be written ({error.strerror}); choose another folder") from error
    free = shutil.disk_usage(output).free
    if free < size:
        if is_new:
            output.rmdir()
        raise DataError(f"--output {output}: needs about {size / 1e6:,.1f} MB, but {free / 1e6:,.1f} MB are free")
