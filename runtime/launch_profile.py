"""The settings of a launch, as a run records them."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class LaunchProfile:
    """The settings that come from the launch.

    Args:
        device: the type of the device, such as "cuda".
        gradient_accumulation_steps: None unless the launch sets more than one.
        dynamo_backend: None if nothing is compiled.
        float32_convolutions: "TF32" or "float32" if CUDA computes in float32; else None.
    """

    processes: int
    machines: int
    distributed_type: str
    device: str
    mixed_precision: str
    gradient_accumulation_steps: int | None = None
    dynamo_backend: str | None = None
    float32_convolutions: str | None = None

    def to_json(self) -> dict[str, str | int]:
        """The settings by name, for the log and run.json; settings that are None are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}
