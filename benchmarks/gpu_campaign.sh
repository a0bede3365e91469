#!/usr/bin/env bash
# A campaign over compiled kernels on a machine with a GPU:  bash benchmarks/gpu_campaign.sh FOLDER [MINUTES]
# From a checkout, without installing. Writes campaign.json (cases a second, coverage, closest calls, findings) and keeps
# the corpus with a bundle of each finding. Exit 1 where it found something.
usage="FOLDER [MINUTES]"; . "$(dirname "$0")/gpu_head.sh"
minutes="${1:-5}"
export OMP_NUM_THREADS=4
everything=()
for name in triton hopper hopper-shared; do everything+=(--implementation "*/$name"); done
limit=$(awk "BEGIN { print int(60 * $minutes + 240) }")
timeout "$limit" python3 -m attnoracle.oracle campaign --minutes "$minutes" --device cuda "${everything[@]}" \
    --corpus "$folder/corpus" --json "$folder/campaign.json"
