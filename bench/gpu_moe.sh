#!/usr/bin/env bash
# A mixture of experts on one GPU: its tests, its kernels, staging held against the recurrence, and VAMP served.
#
#   bench/gpu_moe.sh FOLDER [PART...] [-- KEY=VALUE...]
#
# Parts, the first four by default (five minutes on an H200): test (pytest -m gpu), experts (bench.experts), staging
# (bench.staging), serve (exec_vamp_h200, its runs as an archive); profile (its table, to be unpacked in conf/) and
# profile_x2 (one rank of exec_vamp_tp2 likewise). Overrides behind -- go to serve. Wheels in .whl are installed first,
# for machines without a network. A part that fails does not stop the others; the exit status tells.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: bench/gpu_moe.sh FOLDER [PART...] [-- KEY=VALUE...]}
shift
parts=()
while [[ $# -gt 0 && $1 != -- ]]; do
    parts+=("$1")
    shift
done
[[ $# -gt 0 ]] && shift
overrides=("$@")
[[ ${#parts[@]} -eq 0 ]] && parts=(test experts staging serve)
work=$(mktemp -d)
mkdir -p "$out"
export PYTHONUNBUFFERED=1

if compgen -G '.whl/*.whl' >/dev/null; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" .whl/*.whl
    export PYTHONPATH=$work/site
fi

profiled() { # NAME ARGUMENT...
    local name=$1
    shift
    python3 -m executor profile --model qwen3_30b_a3b --name h200 "$@" --out "$work/conf" --archive "$out/moe_$name.tgz"
}

part() {
    case $1 in
    test) python3 -m pytest -q -p no:cacheprovider -m gpu tests/executor/attention tests/executor/experts tests/executor/models/test_moe_on_a_gpu.py tests/executor/moe ;;
    experts | staging) python3 -m "bench.$1" --out "$out/h200_moe_$1.json" ;;
    profile) profiled "$1" ;;
    profile_x2) profiled "$1" --ranks 2 ;;
    serve)
        python3 -m executor run +experiment=exec_vamp_h200 "output.folder=$work/exec_vamp_h200" "${overrides[@]}"
        local status=$?
        tar -C "$work" -czf "$out/exec_vamp_h200.tgz" exec_vamp_h200
        return $status
        ;;
    *) echo "no part $1; there are test, experts, staging, profile, profile_x2, serve" >&2 && return 2 ;;
    esac
}

failed=0
for each in "${parts[@]}"; do
    began=$SECONDS
    part "$each" 2>&1 | tee "$out/moe_$each.log" || failed=1
    echo "== $each: $((SECONDS - began)) s"
done
exit $failed
