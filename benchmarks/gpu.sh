#!/usr/bin/env bash
# Measures everything that is to be measured on a GPU, the most valuable first.
#
#   benchmarks/gpu.sh                          all steps whose results file is missing
#   benchmarks/gpu.sh --list                   the steps, in order
#   benchmarks/gpu.sh --only models_vit_b16    one step
#   benchmarks/gpu.sh --device cpu --toy       all at the smallest size, to see that they run
#   DATA=cifar10 benchmarks/gpu.sh             also the steps that need CIFAR-10 (train/, test/)
#
# Nothing is downloaded. Every step has at most eight minutes, and writes one file in
# benchmarks/results (or OUT); a step whose file is there is skipped, so that the same command
# continues after an interruption. The first four steps are the headline table.
set -u
cd "$(dirname "$0")/.."
device=cuda toy="" only="" list=""
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 && shift ;;
    --toy) toy=1 ;;
    --only) only=$2 && shift ;;
    --list) list=1 ;;
    *) echo "gpu.sh: unknown option $1: choose --device, --toy, --only or --list" >&2 && exit 2 ;;
    esac
    shift
done
out=${OUT:-benchmarks/results}
python=${PYTHON:-python}
limit=${LIMIT:-480}
failed=0

# step NAME COMMAND...: runs the command with --results FILE.
step() {
    local name=$1 file=$out/$1_$device.json
    shift
    [ -n "$only" ] && [ "$only" != "$name" ] && return
    if [ -n "$list" ]; then echo "$name" && return; fi
    if [ -s "$file" ]; then echo "== $name: $file exists" && return; fi
    echo "== $name: $*"
    if timeout "$limit" "$@" --results "$file.part" >"$out/$name.log" 2>&1; then
        mv "$file.part" "$file" && rm "$out/$name.log" && echo "== $name: wrote $file"
    else
        echo "== $name: exit status $?; see $out/$name.log" && failed=1
    fi
}

models() {
    local name=$1
    shift
    local size=()
    [ -n "$toy" ] && size=(--quick)
    step "models_$name" "$python" -m benchmarks.speed.models --models "$name" --device "$device" \
        "${size[@]}" "$@"
}
part() { step "$1" "$python" -m benchmarks.speed.gpu "$1" --device "$device" ${toy:+--quick}; }

models vit_b16
models vit_s16
models vit_l16 --what inference training
models vit_h14 --what inference training
part attention
part determinism
part memory
part optimizers
if [ -n "${DATA:-}" ]; then
    budget=(--seconds 150 --seeds 1 --arms vit timm_best)
    [ -n "$toy" ] && budget=(--seconds 3 --seeds 1 --arms vit)
    step accuracy "$python" -m benchmarks.speed.time_to_accuracy --data.root "$DATA" \
        --device "$device" "${budget[@]}"
fi
part processes
part feeding
models bit_r50x1 --what inference training
models cifar --what inference training
models vit_ti16 --what inference training
exit $failed
