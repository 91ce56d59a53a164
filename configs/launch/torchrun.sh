#!/bin/bash
# A training on several machines without a scheduler. Run it on every one of them:
#
#   HOST=10.0.0.1 NODES=2 GPUS=8 bash torchrun.sh RECIPE RUN_DIR [OPTIONS of vit fit]
#
# `vit recipes launch/torchrun.sh > torchrun.sh` writes it. HOST is one of the machines, which all
# reach at PORT. Each has GPUS processes, one per GPU. RUN_DIR is on a disk of all machines. OPTIONS
# such as --trainer.strategy fsdp2 replace those below. To resume, run the same line again.

[ $# -ge 2 ] && [ -n "$HOST" ] && [ -n "$NODES" ] && [ -n "$GPUS" ] || {
    echo "usage: HOST=ADDRESS NODES=N GPUS=N [PORT=29500] bash torchrun.sh RECIPE RUN_DIR [OPTIONS]" >&2
    exit 2
}
recipe=$1 run_dir=$2
shift 2

exec torchrun --nnodes "$NODES" --nproc-per-node "$GPUS" \
    --rdzv-backend c10d --rdzv-endpoint "$HOST:${PORT:-29500}" \
    -m vit fit -c "$recipe" --run_dir "$run_dir" --trainer.strategy ddp \
    --trainer.num_nodes "$NODES" --trainer.devices "$GPUS" "$@"
