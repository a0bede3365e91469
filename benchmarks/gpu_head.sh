# Sourced by the scripts beside it:  usage="FOLDER [PART …]"; . "$(dirname "$0")/gpu_head.sh"
# From a checkout, without installing: goes to its root, makes $folder, and has $status 1 once a step failed.
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: bash benchmarks/$(basename "$0") $usage}"
shift
mkdir -p "$folder"
export PYTHONPATH="typings${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
status=0
oracle() { python3 -m attnoracle.oracle "$@" || status=1; }
tool() { python3 -m "attnoracle.benchmarks.$1" "${@:2}" || status=1; }
