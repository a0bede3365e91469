#!/usr/bin/env bash
# Every table of speeds on a machine with a GPU that nobody else uses:  bash benchmarks/gpu_speed.sh FOLDER [PART …]
# From a checkout, without installing. Parts: attention, sparse, select, crossover, whole, decode; all of them if none is named.
# Peers are timed where they are importable or pointed at (see gpu_peers.sh). Exits 0 where nothing was refused.
usage="FOLDER [PART …]"; . "$(dirname "$0")/gpu_head.sh"
parts=("$@"); [ ${#parts[@]} = 0 ] && parts=(sparse select attention crossover whole decode)
speed() { oracle bench --device cuda "$@"; }
only() { for backend in "$@"; do printf -- '-i */%s ' "$backend"; done; }
set -f  # the patterns are the command's, not the shell's
for part in "${parts[@]}"; do
    case "$part" in
        attention) speed --config peers-attention --seconds 0.15 $(only hopper flashinfer-fa3 fa4 sdpa-cudnn flex) \
            --json "$folder/attention.json" --csv "$folder/attention.csv" --png "$folder/attention.png" ;;
        sparse) speed --config peers-sparse --seconds 0.15 $(only 'hopper*' triton flashinfer-fa3 flashmla) \
            --json "$folder/sparse.json" --csv "$folder/sparse.csv" --png "$folder/sparse.png" ;;
        select) speed --config peers-select --seconds 0.15 $(only hopper triton deepgemm torch flashinfer) \
            --json "$folder/select.json" --csv "$folder/select.csv" --png "$folder/select.png"
            tool topk_alone --json "$folder/topk_alone.json" ;;
        crossover) for model in glm-5 deepseek-v3.2; do
            speed crossover --geometry "$model" --seconds 0.1 --json "$folder/crossover-$model.json" \
                --policy "$folder/policy-$model.toml" --png "$folder/crossover-$model.png"; done ;;
        whole) speed whole q1k q2k q8k q32k q2ks32k --geometry glm-5 --tp 1 --tp 8 --seconds 0.1 --json "$folder/whole.json" ;;
        decode) speed decode --geometry glm-5.2 --tp 4 --requests 1 --requests 8 --requests 32 --steps 1024 \
                --json "$folder/decode.json" ;;
        *) echo "no such part: $part"; exit 2 ;;
    esac
done
exit "$status"
