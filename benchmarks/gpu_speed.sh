#!/usr/bin/env bash
# Every table of speeds on a machine with a GPU that nobody else uses:  bash benchmarks/gpu_speed.sh FOLDER [PART …]
# From a checkout, without installing. Parts: attention, sparse, select, crossover, whole; all of them if none is named.
# Peers are timed where they are importable or pointed at (see gpu_peers.sh). Exits 0 where nothing was refused.
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: bash benchmarks/gpu_speed.sh FOLDER [PART …]}"; shift
parts=("$@"); [ ${#parts[@]} = 0 ] && parts=(sparse select attention crossover whole)
mkdir -p "$folder"
export PYTHONPATH="typings${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
status=0
bench() { python3 -m attnoracle.oracle bench --device cuda "$@" || status=1; }
only() { for backend in "$@"; do printf -- '-i */%s ' "$backend"; done; }
set -f  # the patterns are the command's, not the shell's
for part in "${parts[@]}"; do
    case "$part" in
        attention) bench --config peers-attention --seconds 0.15 $(only hopper flashinfer-fa3 sdpa-cudnn flex) \
            --json "$folder/attention.json" --csv "$folder/attention.csv" --png "$folder/attention.png" ;;
        sparse) bench --config peers-sparse --seconds 0.15 $(only 'hopper*' triton flashinfer-fa3 flashmla) \
            --json "$folder/sparse.json" --csv "$folder/sparse.csv" --png "$folder/sparse.png" ;;
        select) bench --config peers-select --seconds 0.15 $(only hopper triton deepgemm torch flashinfer) \
            --json "$folder/select.json" --csv "$folder/select.csv" --png "$folder/select.png"
            python3 -m attnoracle.benchmarks.topk_alone --json "$folder/topk_alone.json" || status=1 ;;
        crossover) for model in glm-5 deepseek-v3.2; do
            bench crossover --geometry "$model" --seconds 0.1 --json "$folder/crossover-$model.json" \
                --policy "$folder/policy-$model.toml" --png "$folder/crossover-$model.png"; done ;;
        whole) bench whole q1k q2k q8k q32k q2ks32k --geometry glm-5 --tp 1 --tp 8 --seconds 0.1 --json "$folder/whole.json"
            bench decode --geometry glm-5.2 --tp 4 --requests 1 --requests 8 --requests 32 --steps 1024 \
                --json "$folder/decode.json" ;;
        *) echo "no such part: $part"; exit 2 ;;
    esac
done
exit "$status"
