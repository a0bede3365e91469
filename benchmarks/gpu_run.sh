#!/usr/bin/env bash
# Makes the files under benchmarks/results on a machine with a GPU:  bash benchmarks/gpu_run.sh FOLDER
# From a checkout, without installing. FlexAttention is left out of the full suite: it compiles every shape anew.
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: bash benchmarks/gpu_run.sh FOLDER}"
mkdir -p "$folder"
export PYTHONPATH=typings PYTHONUNBUFFERED=1
status=0
python3 -m attnoracle.benchmarks.verify_production --json "$folder/verify_production.json" | tail -n 12 || status=1
everything=()
for name in triton 'hopper*' 'sdpa-*' eager gather torch sort; do everything+=(--implementation "*/$name"); done
python3 -m attnoracle.oracle check --suite full --device cuda "${everything[@]}" --json "$folder/full.json" || status=1
python3 -m attnoracle.oracle check --suite production --device cuda --json "$folder/production.json" || status=1
python3 -m attnoracle.oracle replay pr-52512 --quick --device cuda --implementations triton \
    --json "$folder/replay_quick_triton.json" || status=1
python3 -m attnoracle.benchmarks.condense "$folder/full.json" "$folder/production.json" || status=1
exit "$status"
