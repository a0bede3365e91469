#!/usr/bin/env bash
# Checks the public kernels on a machine with a GPU:  bash benchmarks/gpu_peers.sh FOLDER [MODULE …]
# From a checkout, without installing. FlashInfer must be importable; FlashMLA, DeepGEMM, FlashAttention 4 and vLLM's
# helpers importable or pointed at by ATTNORACLE_FLASHMLA, ATTNORACLE_DEEPGEMM, ATTNORACLE_FA4 and ATTNORACLE_VLLM.
# MODULE: names of build_flashinfer's modules; all of them if none is given.
usage="FOLDER [MODULE …]"; . "$(dirname "$0")/gpu_head.sh"
peers=(--implementation '*/flashmla*' --implementation '*/deepgemm*' --implementation 'merge_lse/vllm*' --implementation dense_mha/fa4)
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1  # FlashAttention 4 keeps what it compiled, ten seconds a kernel
python3 -m attnoracle.benchmarks.build_flashinfer --ragged-only "$@" & building=$!
oracle check --quiet --suite full --device cuda "${peers[@]}" --json "$folder/peers.json"
wait "$building" || status=1
tool probe_peers "$folder/probes.json"
export FLASHINFER_DISABLE_JIT=1  # what was not built is an error by name, not an hour of compilation
# Selection is one file that compiles for minutes; ATTNORACLE_TOPK=1 judges it where it was built.
for operator in dense_mha masked_mha sparse_mqa merge_lse ${ATTNORACLE_TOPK:+topk_select}; do
    oracle check --quiet --suite full --device cuda --implementation "$operator/flashinfer*" --json "$folder/flashinfer_$operator.json" &
done
wait
oracle doctor --device cuda --json "$folder/doctor.json" > "$folder/doctor.txt"
tool condense "$folder"/peers.json "$folder"/flashinfer_*.json
exit "$status"
