"""Small data sets in memory: what a process has decoded once it does not decode again."""

from data_utils.loading.decoded_cache import Sample
from runtime.machine import available_bytes

MOST_KEPT = 2**32  # bytes of a split in memory, shared by the loader processes of one process
SHARE_KEPT = 1 / 8  # of the free memory


class KeptSamples:
    """The decoded samples of one process, in memory until they take `room` bytes; the others are decoded again."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self._samples: dict[int, Sample] = {}

    def get(self, index: int) -> Sample | None:
        """A sample whose arrays may not be written to; None if it is not kept."""
        return self._samples.get(index)

    def add(self, index: int, sample: Sample) -> Sample:
        """Keep a sample if there is room for it, and return it."""
        image, target = sample
        arrays = [image, *target.arrays()]
        size = sum(array.nbytes for array in arrays)
        if size <= self.room:
            self.room -= size
            for array in arrays:
                array.flags.writeable = False
            self._samples[index] = sample
        return sample


def room_for(pixels: float, channels: int, processes: int) -> int:
    """The bytes of a split that each loader process may keep; 0 where the split does not fit into them.

    Args:
        pixels: of all images together, about.
        processes: the number of loader processes, each of which keeps what it decodes; 0 for this process alone.
    """
    room = int(min(MOST_KEPT, SHARE_KEPT * available_bytes())) // max(1, processes)
    return room if pixels * (channels + 1) <= room else 0
