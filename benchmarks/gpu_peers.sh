#!/usr/bin/env bash
# Checks the public kernels on a machine with a GPU:  bash benchmarks/gpu_peers.sh FOLDER [MODULE …]
# From a checkout, without installing. FlashInfer must be importable; FlashMLA, DeepGEMM, FlashAttention 4 and vLLM's
# helpers importable or pointed at by ATTNORACLE_FLASHMLA, ATTNORACLE_DEEPGEMM, ATTNORACLE_FA4 and ATTNORACLE_VLLM; what
# is not there is UNSUPPORTED, with the reason.
# MODULE: names of build_flashinfer's modules; all of them if none is given. `topk` is one file that compiles for minutes;
# where it is left out selection is not judged. Ends with 1 while one of docs/findings.md is there.
usage="FOLDER [MODULE …]"; . "$(dirname "$0")/gpu_head.sh"
peers=(-i '*/flashmla*' -i '*/deepgemm*' -i 'merge_lse/vllm*' -i dense_mha/fa4)
everything=() operators=(dense_mha masked_mha sparse_mqa merge_lse)
case " ${*:-topk} " in *" topk "*) operators+=(topk_select) ;; esac
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1  # FlashAttention 4 keeps what it compiled, ten seconds a kernel
check() { # NAME OPTION…
    oracle check --quiet --device cuda --json "$folder/$1.json" "${@:2}"
}
python3 -m attnoracle.benchmarks.build_flashinfer --ragged-only "$@" & building=$!
check peers --suite full "${peers[@]}"
wait "$building" || status=1
tool probe_peers "$folder/probes.json"
export FLASHINFER_DISABLE_JIT=1  # what was not built is an error by name, not an hour of compilation
running=()
for operator in "${operators[@]}"; do
    { check "flashinfer_$operator" --suite full -i "$operator/flashinfer*"; exit "$status"; } & running+=($!)
    everything+=(-i "$operator/flashinfer*")
done
for one in "${running[@]}"; do wait "$one" || status=1; done
check production --suite production "${peers[@]}" "${everything[@]}"
check properties --properties "${peers[@]}" "${everything[@]}"
oracle doctor --device cuda --json "$folder/doctor.json" > "$folder/doctor.txt"
tool condense "$folder"/peers.json "$folder"/flashinfer_*.json "$folder"/production.json "$folder"/properties.json
exit "$status"
