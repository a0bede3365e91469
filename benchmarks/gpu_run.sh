#!/usr/bin/env bash
# Makes the files under benchmarks/results on a machine with a GPU:  bash benchmarks/gpu_run.sh FOLDER
# From a checkout, without installing. FlexAttention is left out of the full suite: it compiles every shape anew.
usage="FOLDER"; . "$(dirname "$0")/gpu_head.sh"
python3 -m attnoracle.benchmarks.verify_production --json "$folder/verify_production.json" | tail -n 12 || status=1
everything=()
for name in triton 'hopper*' 'sdpa-*' eager gather torch sort; do everything+=(--implementation "*/$name"); done
oracle check --suite full --device cuda "${everything[@]}" --json "$folder/full.json"
oracle check --suite production --device cuda --json "$folder/production.json"
oracle replay pr-52512 --quick --device cuda --implementations triton --json "$folder/replay_quick_triton.json"
tool condense "$folder/full.json" "$folder/production.json"
exit "$status"
