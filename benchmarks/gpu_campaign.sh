#!/usr/bin/env bash
# A campaign over compiled kernels on a machine with a GPU:  bash benchmarks/gpu_campaign.sh FOLDER [MINUTES]
# From a checkout, without installing. Writes campaign.json (cases a second, coverage, closest calls, findings) and keeps
# the corpus with a bundle of each finding. Exit 1 where it found something.
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: bash benchmarks/gpu_campaign.sh FOLDER [MINUTES]}"
minutes="${2:-5}"
mkdir -p "$folder"
export PYTHONPATH=typings PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
everything=()
for name in triton hopper hopper-shared; do everything+=(--implementation "*/$name"); done
limit=$(awk "BEGIN { print int(60 * $minutes + 240) }")
timeout "$limit" python3 -m attnoracle.oracle campaign --minutes "$minutes" --device cuda "${everything[@]}" \
    --corpus "$folder/corpus" --json "$folder/campaign.json"
