#!/bin/bash
# Runs everything of the bundle on a machine with an NVIDIA driver: no Rust, no network, no files but
# these. Each part has a deadline; what it says is kept in $OUT (./out unless said), with a record in
# JSON; a short table comes last.
#
#   bash run.sh [PART...]      all parts, or those that are named: doctor nodriver conformance hip opencl devices
#                              example cudarc kernels named memcheck pinned bandwidth transfer bench replay verify
#                              torch weights python pair peers
#   OUT=folder                 where output goes
#   PEERS_SECONDS=900          how long the comparison with other allocators may take
#
# Exits with 0 only where every part that could run passed.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here" || exit 2
OUT=${OUT:-$here/out}
mkdir -p "$OUT" || exit 2
chmod +x forebay *conformance kernels on_device named cudarc_slices 10_cudarc 09_every_device 2>/dev/null
export PATH="$PATH:/usr/local/cuda/bin"
wanted=("$@")
: > "$OUT/parts.tsv"

# Commands are noted as seen from the bundle, wherever that lies.
note() {
  local command=${4//$OUT/\$OUT}
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${command//$here/.}" >> "$OUT/parts.tsv"
}

is_wanted() {
  [ ${#wanted[@]} -eq 0 ] && return 0
  local one
  for one in "${wanted[@]}"; do
    case "$1" in "$one" | "$one"-*) return 0 ;; esac
  done
  return 1
}

# part NAME SECONDS COMMAND...
part() {
  local name=$1 limit=$2 begun status took
  shift 2
  is_wanted "$name" || return 0
  echo "== $name: $*"
  begun=$(date +%s.%N)
  timeout --kill-after=10 "$limit" "$@" > "$OUT/$name.txt" 2>&1
  status=$?
  took=$(python3 -c "import time; print(f'{time.time() - $begun:.1f}')")
  case $status in
    0) note "$name" passed "$took" "$*" ;;
    124 | 137) note "$name" "failed (over $limit s)" "$took" "$*" ;;
    *)
      note "$name" "failed (status $status)" "$took" "$*"
      tail -n 12 "$OUT/$name.txt" | cut -c 1-300
      ;;
  esac
}

skip() { is_wanted "$1" && note "$1" "skipped: $2" 0 ""; }

part doctor 60 ./forebay doctor
part doctor-json 60 ./forebay doctor --json
part nodriver 60 bash -c 'FOREBAY_CUDA_DRIVER=/no/driver.so ./forebay doctor --json | grep -o "no CUDA driver: [^\"]*"'
part conformance 240 ./conformance
# HIP's functions over the CUDA driver, by the rules of each version that has its own.
for version in 5.7 6.3 7.1; do
  part "hip-$version" 240 env FOREBAY_HIP_DRIVER=./libforebay_hip_bridge.so \
    FOREBAY_HIP_BRIDGE_VERSION=$version ./hip_conformance
done
part opencl 300 ./opencl_conformance
# The tests of pools, buffers and transfers, and the example of all of them, on every device: OpenCL's number 0 is the
# GPU, number 1 the processor.
export FOREBAY_HIP_DRIVER=$here/libforebay_hip_bridge.so
present=$(timeout 60 ./forebay doctor --json | grep -oE '"summary": ?"[a-z]+:[0-9]+ ')

# part_on DEVICE NAME SECONDS COMMAND...: such a part, where the device is there
part_on() {
  local device=$1 name=$2-${1/:/} limit=$3
  shift 3
  case "$present" in
    *"\"$device "*) part "$name" "$limit" "$@" ;;
    *) skip "$name" "there is no $device" ;;
  esac
}

for device in cuda:0 hip:0 opencl:0 opencl:1; do
  part_on $device devices 240 env FOREBAY_TEST_DEVICES=$device ./on_device
  part_on $device example 60 ./09_every_device $device
done
part kernels 240 ./kernels
part named 300 env FOREBAY_TEST_DEVICES=cuda:0 ./named
part cudarc 120 env FOREBAY_TEST_DEVICES=cuda:0 ./cudarc_slices
part cudarc-example 60 ./10_cudarc

if command -v compute-sanitizer > /dev/null; then
  # What the driver refuses on purpose is no error of memory, so refusals are not reported.
  check=(compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 99)
  part memcheck-conformance 400 "${check[@]}" ./conformance --test-threads 1
  part memcheck-pool 400 env FOREBAY_TEST_DEVICES=cuda:0 "${check[@]}" ./on_device --test-threads 1
  # Times mean nothing under it.
  part memcheck-kernels 400 "${check[@]}" ./kernels --skip "no call waits" --skip "returns at once" \
    --skip "nothing is left behind"
else
  skip memcheck "there is no compute-sanitizer"
fi

# Pinned memory: what a hit costs beside the driver's call.
if command -v nvcc > /dev/null; then
  if nvcc -O2 -std=c++17 pinned.cpp -I. -L. -lforebay_capi -lcuda -Xlinker -rpath,"$here" -o "$OUT/pinned" > "$OUT/pinned-build.txt" 2>&1; then
    part pinned 60 "$OUT/pinned"
  else
    note pinned "failed: pinned.cpp does not compile" 0 ""
  fi
else
  skip pinned "there is no nvcc"
fi

# The named workloads on forebay, the driver, and what else can be built here.
against=()
if command -v nvcc > /dev/null && torch=$(python3 -c "import os, torch; print(os.path.dirname(torch.__file__))" 2> /dev/null); then
  if nvcc -O2 -std=c++20 -x cu -w -Xcompiler -fPIC -shared -I"$torch/include" peers/sides.cpp -o "$OUT/libsides.so" \
    -L"$torch/lib" -lc10 -lc10_cuda -Xlinker -rpath,"$torch/lib" > "$OUT/sides.txt" 2>&1; then
    against=(--against "cudaMallocAsync=$OUT/libsides.so:async_allocate:async_free"
      --against "PyTorch=$OUT/libsides.so:torch_allocate:torch_free")
  fi
fi
part bandwidth 120 ./forebay bandwidth --device cuda:0 --json
part transfer 120 ./forebay bench transfer --device cuda:0 --json
part bench 240 ./forebay bench alloc --device cuda:0 --json "${against[@]}"
rm -f "$OUT/libsides.so"
if ls traces/*.csv.gz > /dev/null 2>&1; then
  part replay 240 ./forebay replay traces/*.csv.gz --device cuda:0 --policy forebay --passes 2 --json
else
  skip replay "no recorded runs came with the bundle"
fi
# What every block holds is checked, so this measures the copies, not the pool.
for device in cuda:0 hip:0 opencl:0; do
  if [ -f traces/gpt2_train.csv.gz ]; then
    part_on $device verify 180 ./forebay replay traces/gpt2_train.csv.gz --device $device --verify --policy forebay \
      --passes 1 --json
  else
    skip "verify-${device/:/}" "the recorded run gpt2_train did not come with the bundle"
  fi
done
if python3 -c "import torch" 2> /dev/null; then
  ours=(--library "$here/libforebay_capi.so")
  part torch 180 python3 torch_check.py "$here/libforebay_capi.so"
  part python 180 python3 python_check.py "${ours[@]}"
  part torch-oom 180 python3 oom_check.py "${ours[@]}"
  part torch-graph 180 python3 graph_check.py "${ours[@]}"
  part torch-parity 400 python3 parity_check.py
  part torch-pinned 120 python3 pinned_check.py
  part torch-transfer 120 env PYTHONPATH="$here/python" python3 transfer_check.py
  part weights 150 env PYTHONPATH="$here/python" python3 weights_check.py
  # Where the machine has none and they came with the bundle.
  if ! python3 -c "import transformers, accelerate" 2> /dev/null && ls wheels/*.whl > /dev/null 2>&1; then
    site=$(mktemp -d)
    for wheel in wheels/*.whl; do
      [[ $wheel == wheels/forebay-* ]] && continue
      python3 -m zipfile -e "$wheel" "$site"
    done
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
  fi
  if python3 -c "import transformers" 2> /dev/null; then
    part torch-train 600 python3 train_check.py "${ours[@]}"
  else
    # A model of the same size that PyTorch alone is enough for.
    part torch-train-plain 600 python3 train_check.py "${ours[@]}" --model plain
  fi
  # FOREBAY_TORCH and an untouched program: with the published wheel, if it came with the bundle.
  if python3 -c "import transformers, accelerate" 2> /dev/null; then
    wheel=$(ls wheels/forebay-*.whl 2> /dev/null | head -n 1)
    part torch-trainer 300 python3 trainer_check.py ${wheel:+--wheel "$wheel"}
  else
    skip torch-trainer "there is no transformers with accelerate"
  fi
  if python3 -c "import cupy" 2> /dev/null; then
    part torch-together 180 python3 together_check.py "${ours[@]}"
  else
    skip torch-together "there is no CuPy"
  fi
else
  skip torch "there is no PyTorch"
fi
part beside 120 python3 beside_check.py --library "$here/libforebay_capi.so" --rounds 200
if command -v cc > /dev/null; then
  part pair 120 python3 pair_check.py --library "$here/libforebay_capi.so" --forebay ./forebay
else
  skip pair "there is no compiler of C"
fi
if ! command -v nvcc > /dev/null; then
  skip peers "there is no nvcc"
elif ! python3 -c "import torch" 2> /dev/null; then
  skip peers "there is no PyTorch"
else
  part peers "${PEERS_SECONDS:-900}" python3 peers/run.py --out "$OUT"
fi

python3 table.py "$OUT" "$(cat COMMIT)"
