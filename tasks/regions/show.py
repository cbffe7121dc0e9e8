"""Regions in the report."""

from tasks.overlapping.show import OverlapSection
from tasks.tables import markdown_text


class RegionSection(OverlapSection):
    """What `tasks.regions` shows."""

    mask_values = "bits of the regions, the first one in the lowest"

    def description(self) -> str:
        regions = ", ".join(map(markdown_text, self.reader.identity))
        return (
            f"Semantic segmentation into {len(self.names)} regions, unions of labels: {regions}. Masks are written as"
            " labels: later regions lie over earlier ones, each as its first value."
        )
