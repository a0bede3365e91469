#!/usr/bin/env bash
# Bundles of planted Triton faults, made on the GPU and replayed on its CPU:  bash benchmarks/gpu_bundles.sh FOLDER
# From a checkout, without installing. Writes FOLDER/bundles/<fault>, made.json and replayed.json; the folder can be
# taken to a machine without a GPU: python -m attnoracle.benchmarks.bundles replay FOLDER/bundles
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: bash benchmarks/gpu_bundles.sh FOLDER}"
mkdir -p "$folder"
export PYTHONPATH=typings PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
status=0
timeout 300 python3 -m attnoracle.benchmarks.bundles make "$folder/bundles" --json "$folder/made.json" || status=1
timeout 250 env CUDA_VISIBLE_DEVICES= python3 -m attnoracle.benchmarks.bundles replay "$folder/bundles" \
    --json "$folder/replayed.json" || status=1
exit "$status"
