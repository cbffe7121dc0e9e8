"""Reviews of masks, without any network."""

from types import SimpleNamespace

from train_utils.review.reviewed_masks import Area
from train_utils.review.reviews import MaskReview


def mask_review(
    name: str, score: float = 0.5, share: float = 0.0, missing: float = 0.0, shifted: bool = False
) -> MaskReview:
    """A review by the run "run" whose only problem may be a shift."""
    run = SimpleNamespace(name="run", info=None, has_volumes=False)
    areas = [Area(False, "car", 50, 1.0, False, None, missing)]
    return MaskReview(name, run, 0, [0], score, share, areas, ["moved"] if shifted else [])
