#!/usr/bin/env bash
# Bundles of planted Triton faults, made on the GPU and replayed on its CPU:  bash benchmarks/gpu_bundles.sh FOLDER
# From a checkout, without installing. Writes FOLDER/bundles/<fault>, made.json and replayed.json; the folder can be
# taken to a machine without a GPU: python -m attnoracle.benchmarks.bundles replay FOLDER/bundles
usage="FOLDER"; . "$(dirname "$0")/gpu_head.sh"
export OMP_NUM_THREADS=4
timeout 300 python3 -m attnoracle.benchmarks.bundles make "$folder/bundles" --json "$folder/made.json" || status=1
timeout 250 env CUDA_VISIBLE_DEVICES= python3 -m attnoracle.benchmarks.bundles replay "$folder/bundles" \
    --json "$folder/replayed.json" || status=1
exit "$status"
