#!/usr/bin/env bash
# What the executor does on a GPU, part by part, with what it wrote as archives in a folder.
#
#   bench/gpu_session.sh FOLDER PART... [-- KEY=VALUE...]
#
# Parts: info, test (pytest -m gpu), smoke (exec_single with 5 s of arrivals), attention (bench.attention, two models),
# profile (the models of exec_*, to be unpacked in conf/), pipeline_host; with two GPUs pipeline_peer and ranks
# (exec_single divided, 20 s); exec_NAME (an experiment); interrupt (exec_c1 stopped while it serves: how long does it
# take to end?); last, if wanted, pack (FOLDER as FOLDER.tgz). Minutes on an H200, about: test 2, attention 3, profile 4,
# exec_single 4, exec_c1 5, exec_c2 5, exec_unseen 3, interrupt 3. With two GPUs one call each, into one folder, behind
# CUDA_VISIBLE_DEVICES=0 and 1; profile measures the link to the host, so nothing else should copy meanwhile.
# Overrides behind -- go to every experiment: -- workload.duration_s=60. TILINGS="64:4:2:528:4 ..." are what attention
# tries besides. Wheels in .whl are installed first, for machines without a network. A part that fails does not stop the
# others; the exit status tells.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: bench/gpu_session.sh FOLDER PART... [-- KEY=VALUE...]}
shift
parts=()
while [[ $# -gt 0 && $1 != -- ]]; do
    parts+=("$1")
    shift
done
[[ $# -gt 0 ]] && shift
overrides=("$@")
models=(opt_13b opt_30b llama_2_13b llama_3_8b opt_6_7b)
work=$(mktemp -d)
mkdir -p "$out"
export PYTHONUNBUFFERED=1

if compgen -G '.whl/*.whl' >/dev/null; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" .whl/*.whl
    export PYTHONPATH=$work/site
fi

experiment() { # NAME OVERRIDE...
    local name=$1
    shift
    python3 -m executor run "+experiment=$name" "output.root=$work/$name" "$@"
    local status=$?
    tar -C "$work" -czf "$out/$name.tgz" "$name"
    return $status
}

interrupted() { # SIGTERM, as a shell has background jobs ignore SIGINT; whoever is there a minute later tells where
    python3 -X faulthandler -m executor run +experiment=exec_c1 'compare=[mirage]' "output.folder=$work/interrupt" &
    local process=$! began watcher
    until compgen -G "$work/interrupt/*/run.json" >/dev/null || ! kill -0 $process; do sleep 1; done
    sleep 100 # loaded by then, and serving
    began=$SECONDS
    kill -TERM $process
    (sleep 60 && kill -ABRT $process) >/dev/null 2>&1 &
    watcher=$!
    wait $process
    echo "ended with $? after $((SECONDS - began)) s"
    kill $watcher
    grep -h '"state"\|"reason"' "$work"/interrupt/*/run.json
}

part() {
    case $1 in
    info) nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv && python3 -c 'import torch; print(torch.__version__)' ;;
    test) python3 -m pytest -q -p no:cacheprovider -m gpu tests/executor ;;
    smoke) experiment exec_single workload.duration_s=5 output.figures=false ;;
    attention) python3 -m bench.attention --models opt_13b llama_3_8b --out "$out/h200_attention.json" ${TILINGS:+--tilings $TILINGS} ;;
    profile) python3 -m executor profile --model "${models[@]}" --name h200 --out "$work/conf" --archive "$out/profile.tgz" ;;
    pipeline_*) python3 -m bench.pipeline_gpu --tier "${1#pipeline_}" --out "$out/$1.json" ;;
    ranks) experiment exec_single backend.ranks=2 hardware.hbm_bytes=60000000000 workload.duration_s=20 output.figures=false ;;
    exec_*) experiment "$1" "${overrides[@]}" ;;
    interrupt) interrupted ;;
    pack) tar -C "$(dirname "$out")" --exclude=pack.log -czf "$out.tgz" "$(basename "$out")" ;;
    *) echo "no part $1; there are info, test, smoke, attention, profile, pipeline_host, pipeline_peer, ranks, exec_NAME, interrupt, pack" >&2 && return 2 ;;
    esac
}

failed=0
for each in "${parts[@]}"; do
    began=$SECONDS
    part "$each" 2>&1 | tee "$out/$each.log" || failed=1
    echo "== $each: $((SECONDS - began)) s"
done
exit $failed
