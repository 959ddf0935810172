#!/usr/bin/env bash
# What the executor does on two GPUs of one host, part by part, with what it wrote in a folder.
#
#   bench/gpu_two.sh FOLDER PART... [-- KEY=VALUE...]
#
# Parts, with their seconds on 2 x H200 (estimated, but where a file is named): ranks (pytest -m gpu, at most 150),
# vamp_smoke (60: four sessions of two turns on two ranks), vamp_tp2 (exec_vamp_tp2, 150), pipeline
# (bench.pipeline_gpu, 180), profile (of the peer link with one small model, 240), gh200 (exec_gh200_like, 330).
# Overrides behind -- go to vamp_tp2 and gh200. Wheels in .whl are installed first, for machines without a network. A
# part has a hard limit, so that a rank that hangs costs no more; one that fails does not stop the others; the exit
# status tells.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: bench/gpu_two.sh FOLDER PART... [-- KEY=VALUE...]}
shift
parts=()
while [[ $# -gt 0 && $1 != -- ]]; do
    parts+=("$1")
    shift
done
[[ $# -gt 0 ]] && shift
overrides=("$@")
work=$(mktemp -d)
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD

if compgen -G '.whl/*.whl' >/dev/null; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" .whl/*.whl
    export PYTHONPATH=$PWD:$work/site
fi

limit() { # SECONDS COMMAND...: Ctrl-C at the limit, the end of all processes ten seconds later
    timeout --signal=INT --kill-after=10 "$@"
}

experiment() { # SECONDS NAME OVERRIDE...
    local seconds=$1 name=$2
    shift 2
    limit "$seconds" python3 -m executor run "+experiment=$name" "output.folder=$work/$name" backend.rank_timeout_s=20 "$@"
    local status=$?
    tar -C "$work" -czf "$out/$name.tgz" "$name"
    return $status
}

part() {
    case $1 in
    ranks)
        local failed=0 test
        for test in tests/executor/ranks tests/executor/moe/test_processes.py; do
            limit 75 python3 -m pytest -q -x -p no:cacheprovider -m gpu "$test" || failed=1
        done
        return $failed
        ;;
    vamp_smoke) experiment 120 exec_vamp_tp2 compare='[vamp_10]' sessions.exec_agents.n_sessions=4 sessions.exec_agents.n_turns=2 ;;
    vamp_tp2) experiment 300 exec_vamp_tp2 "${overrides[@]}" ;;
    pipeline) limit 400 python3 -m bench.pipeline_gpu --tier peer --out "$out/h200_pipeline_peer.json" ;;
    profile) limit 400 python3 -m executor profile --name h200_peer --tier peer --model opt_6_7b --out "$out/profile" ;;
    gh200) experiment 550 exec_gh200_like output.figures=false "${overrides[@]}" ;;
    *) echo "no part $1; there are ranks, vamp_smoke, vamp_tp2, pipeline, profile, gh200" >&2 && return 2 ;;
    esac
}

failed=0
for each in "${parts[@]}"; do
    began=$SECONDS
    part "$each" 2>&1 | tee "$out/two_$each.log" || failed=1
    echo "== $each: $((SECONDS - began)) s"
done
exit $failed
