"""Weights and optimizer state spread over the processes: the DTensors of FSDP2, the partitions of DeepSpeed's ZeRO."""

from collections.abc import Iterable, Iterator
from types import MethodType

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast, convert_outputs_to_fp32
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from data_utils.loading.batch_sampler import BatchSplit
from runtime.device import wait_for
from runtime.errors import CheckpointError, LaunchError
from runtime.launch import SHARDING
from unet.model import UNet

ZERO = "zero/"  # the prefix of names of tensors that cannot be restored on another number of processes


def prepare_sharding(accelerator: Accelerator, model: UNet, batch_split: BatchSplit, clip: float) -> None:
    """Settings and checks for FSDP and DeepSpeed; call it before `prepare`. It does nothing for other launches."""
    kind = accelerator.distributed_type
    if kind not in SHARDING:
        return
    model.to(memory_format=torch.contiguous_format)  # neither takes channels-last weights
    if kind == DistributedType.FSDP:
        _prepare_fsdp(accelerator, model)
    else:
        _prepare_deepspeed(accelerator, batch_split, clip)


def _prepare_fsdp(accelerator: Accelerator, model: UNet) -> None:
    if not accelerator.is_fsdp2:
        raise LaunchError(
            "the launch profile asks for FSDP 1; set fsdp_version: 2, as accelerate_configs/fsdp.yaml does"
        )
    if accelerator.mixed_precision == "fp16":
        raise LaunchError("FSDP does not work with fp16 here; use bf16, or fp16 with multi_gpu.yaml")
    # autocast chooses the precision of each layer. The policy would give batch norm half precision weights too, which
    # it does not accept beside float32 statistics.
    plugin = accelerator.state.fsdp_plugin
    plugin.mixed_precision_policy = None
    if plugin.transformer_cls_names_to_wrap and model.encoder is not None:  # each of its stages is gathered too
        stages = {type(stage).__name__ for stage in model.encoder.stages}
        plugin.transformer_cls_names_to_wrap = sorted(stages.union(plugin.transformer_cls_names_to_wrap))
    _compute_in_precision(accelerator, model)


def _compute_in_precision(accelerator: Accelerator, network: UNet) -> None:
    """Compute in the precision of the launch, with outputs in float32, as accelerate's `prepare` does without FSDP."""
    if accelerator.native_amp:
        forward = convert_outputs_to_fp32(accelerator.autocast()(type(network).forward))
        # the method is bound to the network, so that a copy of the network calls its own
        network.forward = MethodType(forward, network)  # type: ignore[method-assign]


def _prepare_deepspeed(accelerator: Accelerator, batch_split: BatchSplit, clip: float) -> None:
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    stage = config["zero_optimization"]["stage"]
    if stage != 2:
        raise LaunchError(f"the launch profile asks for ZeRO stage {stage}; use stage 2, or fsdp.yaml")
    if accelerator.mixed_precision == "fp16":
        raise LaunchError("DeepSpeed does not work with fp16 here; use bf16, or fp16 with multi_gpu.yaml")
    # weights stay in float32, where running averages and checkpoints need them, as everywhere else
    config["torch_autocast"] = {"enabled": accelerator.mixed_precision == "bf16", "dtype": "bfloat16"}
    config["bf16"] = {"enabled": False}
    config["train_micro_batch_size_per_gpu"] = batch_split.micro_batch_size
    config["gradient_accumulation_steps"] = batch_split.accumulation
    accelerator.gradient_accumulation_steps = batch_split.accumulation
    config["gradient_clipping"] = clip


def _is_spread(value: Tensor) -> bool:
    """Whether a tensor is a DTensor; importing that class would cost half a second at every start, sharded or not."""
    return hasattr(value, "full_tensor")


def gather_tensor(value: Tensor) -> Tensor:
    """The whole tensor, gathered if it is spread over the processes; every process must call it."""
    return value.full_tensor() if _is_spread(value) else value


def local(value: Tensor) -> Tensor:
    """This process's part of a tensor, as a plain tensor on the same memory."""
    return value.to_local() if _is_spread(value) else value


def shard_like(value: Tensor, example: Tensor) -> Tensor:
    """This process's part of a whole tensor, spread as `example` is; every process has the whole tensor."""
    if not _is_spread(example):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(example.device), example.device_mesh, example.placements, src_data_rank=None)


def whole_copies(
    accelerator: Accelerator, groups: dict[str, Iterable[tuple[str, Tensor]]]
) -> dict[str, dict[str, Tensor]]:
    """Copies of each group's whole tensors, by name, on the CPU of the main process; the other processes get none.

    Every process must call it. One tensor at a time is gathered: a device may have no room for all of them. The host
    waits for the device once.
    """
    copies: dict[str, dict[str, Tensor]] = {}
    for kind, tensors in groups.items():
        copies[kind] = {}
        for name, value in tensors:
            value = gather_tensor(value).detach()
            if accelerator.is_main_process:
                copies[kind][name] = value.to(
                    "cpu", copy=True, memory_format=torch.contiguous_format, non_blocking=True
                )
    wait_for(accelerator.device)
    return copies


@torch.inference_mode(False)  # in which DTensors cannot be gathered
@torch.no_grad()
def whole_network(accelerator: Accelerator, network: UNet) -> UNet:
    """A network that each process can use alone: this network, or a copy if its weights are spread over processes.

    The copy is a plain U-Net in evaluation mode, without the additions of training. There is enough memory for it: the
    memory trial had the whole network on each device. Every process must call this function.
    """
    state = network.published_state()
    if not any(map(_is_spread, state.values())):
        return network
    with torch.device(accelerator.device):
        whole = UNet(network.config)
    for name, value in whole.state_dict().items():  # one at a time, which needs less memory
        value.copy_(gather_tensor(state[name]))
    _compute_in_precision(accelerator, whole)
    return whole.eval()


def share_statistics(accelerator: Accelerator, network: nn.Module) -> None:
    """Give every process the main process's running statistics, which are evaluated and saved."""
    if accelerator.num_processes > 1:
        broadcast(list(network.buffers()))


def optimizer_tensors(
    accelerator: Accelerator, network: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimizer's tensors with their names, `<parameter>/<name>` such as `.../exp_avg`, for `whole_copies`.

    With ZeRO the names are `zero/<group>/<name>` and the shapes (processes, partition): the float32 weights, and the
    optimizer's state for them. Every process must iterate over all of them.
    """
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        for group, (weights, state) in enumerate(_partitions(optimizer)):
            partitions = {"weights": weights.detach()} | state
            for key, value in partitions.items():
                partition = torch.as_tensor(value, device=accelerator.device)
                yield f"{ZERO}{group}/{key}", accelerator.gather(partition[None])
        return
    names = {parameter: name for name, parameter in network.named_parameters()}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if value is not None:
                yield f"{names[parameter]}/{key}", torch.as_tensor(value)


def restore_optimizer(
    accelerator: Accelerator, network: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Give the optimizer its part of the tensors of `optimizer_tensors`; CheckpointError if ZeRO cannot take them."""
    is_zero = accelerator.distributed_type == DistributedType.DEEPSPEED
    if tensors and is_zero != all(key.startswith(ZERO) for key in tensors):
        raise CheckpointError(
            "--resume: DeepSpeed and other launches cannot exchange optimizer state; use the checkpoint's profile"
        )
    if is_zero:
        _restore_partitions(accelerator, optimizer, tensors)
        return
    parameters = dict(network.named_parameters())
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        if value.shape == parameter.shape:  # it gets the parameter's memory format, as it had when it was saved
            value = torch.empty_like(parameter, requires_grad=False).copy_(shard_like(value, parameter))
        optimizer.state[parameter][key] = value.to(parameter.device)  # the step's number too: its kernel is fused


def _restore_partitions(accelerator: Accelerator, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore this process's ZeRO partitions from the tensors of `optimizer_tensors`.

    Raises CheckpointError if they were saved with another number of processes.
    """
    partitions = _partitions(optimizer)
    for path, value in tensors.items():
        group, _, key = path.removeprefix(ZERO).partition("/")
        weights, state = partitions[int(group)]
        if len(value) != accelerator.num_processes:
            raise CheckpointError(
                f"--resume: ZeRO's optimizer state is from {len(value)} processes, but this run has"
                f" {accelerator.num_processes}; resume on {len(value)}"
            )
        value = value[accelerator.process_index]
        if key == "weights":
            weights.data.copy_(value)
        elif value.ndim:
            state[key] = value.to(weights.device)
        else:
            state[key] = value.clone()


def _partitions(optimizer: Optimizer) -> list[tuple[Tensor, dict]]:
    """This process's weights in float32 and the optimizer's state for them, for each of ZeRO's parameter groups."""
    own_optimizer = optimizer.optimizer.optimizer  # accelerate's holds DeepSpeed's, which holds ours
    weights = [group["params"][0] for group in own_optimizer.param_groups]
    return [(partition, own_optimizer.state[partition]) for partition in weights]


def rebuild_buckets(model: nn.Module, network: UNet) -> None:
    """Have DDP order the gradients as it does from the second step of a run on; all processes must call it.

    In the first step after its start DDP orders gradients as the parameters are defined, later as they become ready.
    With more than two processes, the order in which a gradient is summed depends on its place in the buckets: a resumed
    run would round its first step differently from a run that was never interrupted. This function therefore makes that
    first step with one backward pass on empty images, and discards its results.

    Args:
        model: the model that accelerate has prepared, not compiled.
        network: the same model, not wrapped.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    size = [2 * divisor for divisor in network.config.divisors]
    logits = model(torch.zeros(1, network.config.in_channels, *size, device=model.device))
    levels = [logits] if isinstance(logits, Tensor) else logits
    torch.stack([level.sum() for level in levels]).sum().backward()
    model.zero_grad()
    for name, buffer in network.named_buffers():
        buffer.copy_(buffers[name])
