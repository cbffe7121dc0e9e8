"""Reviews of masks, without any network."""

from types import SimpleNamespace

from train_utils.review.reviewed_masks import Area
from train_utils.review.reviews import MaskReview, ReviewedSlice


def mask_review(
    name: str,
    score: float = 0.5,
    share: float = 0.0,
    missing: float = 0.0,
    shifted: bool = False,
    *,
    run: object = None,
    number: int = 0,
) -> MaskReview:
    """A review of an image, or of slice `number` of a volume; without `run` by one whose name is "run"."""
    run = run or SimpleNamespace(name="run", info=None, has_volumes=False)
    areas = [Area(False, "car", 50, 1.0, False, None, missing)]
    part = ReviewedSlice(number, score, share, (5, -4) if shifted else None, areas)
    return MaskReview(name, run, 0, [part])
