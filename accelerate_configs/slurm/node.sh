#!/bin/bash
# What train.sbatch runs once on each node.
set -uo pipefail

processes_per_node=${SLURM_GPUS_ON_NODE:-1}
# USR1 would kill the launcher and leave its processes running; ignored, it only reaches those that act on it
(
    trap '' USR1
    exec accelerate launch \
        --config_file "${PROFILE:-accelerate_configs/multi_node.yaml}" \
        --num_machines "$SLURM_NNODES" \
        --num_processes $((SLURM_NNODES * processes_per_node)) \
        --machine_rank "$SLURM_NODEID" \
        --main_process_ip "$MAIN_ADDRESS" \
        --main_process_port "$MAIN_PORT" \
        train.py --resume auto "$@"
) &
launcher=$!
trap 'pkill -USR1 -P "$launcher"' USR1  # where Slurm signals this script alone, not all that it has started
trap 'kill -TERM "$launcher"' TERM
status=143
while kill -0 "$launcher" 2>/dev/null; do
    wait "$launcher"
    status=$?
done
exit "$status"
