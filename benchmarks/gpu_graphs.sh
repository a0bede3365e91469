#!/usr/bin/env bash
# Real CUDA graphs, and the table of agreement with the emulator:  bash benchmarks/gpu_graphs.sh FOLDER
# From a checkout, without installing. Writes graphs_cuda.json, agreement.json and calls.json; each part has its own
# time limit and none needs the others. Exits 0 where everything went as it must.
usage="FOLDER"; . "$(dirname "$0")/gpu_head.sh"
export OMP_NUM_THREADS=4
timeout 40 python3 -m attnoracle.benchmarks.graph_agreement calls --json "$folder/calls.json" || status=1
timeout 150 python3 -m attnoracle.benchmarks.graph_agreement faults --json "$folder/agreement.json" || status=1
timeout 200 python3 -m attnoracle.oracle graphs --device cuda --json "$folder/graphs_cuda.json" || status=1
timeout 60 python3 -m attnoracle.oracle graphs --device cuda --subject triton --theme captured-with \
    --json "$folder/graphs_triton.json" || status=1
exit "$status"
