#!/usr/bin/env bash
# Compares the files of training runs of another commit and of this working tree, bit for bit.
#
#   tests/same_bits.sh COMMIT                builds the trainers of COMMIT and of the working tree, and compares them
#   tests/same_bits.sh --builds BEFORE NOW   compares the programs of two build folders
#
# Each trainer runs on its demonstration data, on the CPU, with one and with two ranks:
#   whole     a run of each build without interruption
#   resumed   a run that BEFORE begins, and that each build resumes and ends
# Prints a line for each comparison. Exit status: 0 if all files are the same, else 1; the runs are kept then.
# tests/same_bits.py lists the files and values that are not compared, with the reason.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=(trainkit-transformer trainkit-hsi trainkit-gpt2rec trainkit-emotion)
steps=12 interrupted_at=6

die() { printf 'same_bits: %s\n' "$*" >&2; exit 2; }

case "${1:-}" in
  --builds)
    [ $# = 3 ] || die "--builds needs two build folders"
    before=$2 now=$3 ;;
  -h | --help | "")
    sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"
    exit $(($# == 0 ? 2 : 0)) ;;
  *)
    git -C "$root" rev-parse --verify --quiet "$1^{commit}" >/dev/null || die "no such commit: $1"
    before=$("$root/dev" build-commit "$1" trainkit-tool "${programs[@]}" | tee /dev/stderr | tail -n 1)
    now=$root/${TRAINKIT_BUILD:-build}
    (cd "$root" && ./dev build trainkit-tool "${programs[@]}") ;;
esac
for build in "$before" "$now"; do
  for program in trainkit "${programs[@]}"; do [ -x "$build/bin/$program" ] || die "there is no $build/bin/$program"; done
done
before=$(cd "$before" && pwd) now=$(cd "$now" && pwd)
unset TRAINKIT_BUILD  # programs reject unknown variables with the prefix TRAINKIT_
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1
work=$(mktemp -d "${TMPDIR:-/tmp}/same_bits.XXXXXX")

# Flags of a short run of a program. Paths are relative to the folder that a run starts in, as some files contain them.
flags_of() {
  local data=../../data/$1
  case $1 in
    trainkit-transformer)
      echo --input $data/demo.txt --hidden_dim 16 --n_layers 1 --n_heads 2 --block_size 16 --batch_size 4 --dropout 0.1 \
        --grad_accum_steps 2 --sample_tokens 20 ;;
    trainkit-hsi) echo --cube $data/demo.mat --gt $data/demo_gt.mat --model cnn2d --patch_size 5 --batch_size 8 ;;
    trainkit-gpt2rec) echo --data_dir $data/ml-1m --model bpr_mf --embed_dim 8 --batch_size 32 ;;
    trainkit-emotion)
      echo --data_dir $data --model_size simple --frames 2 --image_size 32 --audio_seconds 1 --batch_size 14 ;;
  esac
}

# train BUILD PROGRAM RANKS FOLDER FLAGS...: trains in FOLDER/run.
train() {
  local build=$1 program=$2 ranks=$3 folder=$4 launch=()
  shift 4
  [ "$ranks" = 1 ] || launch=("$build/bin/trainkit" launch --nproc_per_node "$ranks" --)
  mkdir -p "$folder"
  (cd "$folder" && "${launch[@]}" "$build/bin/$program" --output_dir run "$@") >>"$folder/log" 2>&1 && return
  printf 'FAILED  %s, ranks %s, %s: %s\n' "$program" "$ranks" "${folder##*/}" "$(tail -n 3 "$folder/log" | tr '\n' ' ')"
  return 1
}

# compare PROGRAM RANKS KIND A B
compare() { python3 "$root/tests/same_bits.py" "$1, ranks $2, $3" "$4/run" "$5/run"; }

# run_program PROGRAM RANKS: makes and compares the runs of a program.
run_program() {
  local program=$1 ranks=$2 place=$work/$1-$2 failed=0
  local common=(--device cpu --seed 3 --threads 1 --num_workers 1 --epochs 100 --early_stopping 0 --scheduler constant
                --warmup_steps 0 --ema 0.9 --log_every 2 --save_every 3 --eval_every 6 --keep_last 1 --no-plan_memory
                --no-use_tensorboard $(flags_of "$program"))
  train "$before" "$program" "$ranks" "$place/whole-before" "${common[@]}" --max_steps "$steps" &&
    train "$now" "$program" "$ranks" "$place/whole-now" "${common[@]}" --max_steps "$steps" &&
    compare "$program" "$ranks" whole "$place/whole-before" "$place/whole-now" || failed=1
  train "$before" "$program" "$ranks" "$place/resumed-before" "${common[@]}" --max_steps "$interrupted_at" || return 1
  cp -a "$place/resumed-before" "$place/resumed-now"
  train "$before" "$program" "$ranks" "$place/resumed-before" --resume latest --max_steps "$steps" &&
    train "$now" "$program" "$ranks" "$place/resumed-now" --resume latest --max_steps "$steps" &&
    compare "$program" "$ranks" resumed "$place/resumed-before" "$place/resumed-now" || failed=1
  [ $failed = 1 ] || rm -r "$place"
  return $failed
}

differences=0
for program in "${programs[@]}"; do
  "$before/bin/$program" --make_demo_data "$work/data/$program" >"$work/log" 2>&1 || { cat "$work/log"; die "$program has no data"; }
  for ranks in 1 2; do run_program "$program" "$ranks" || differences=1; done
done
if [ $differences = 0 ]; then rm -r "$work"; else echo "the runs are in $work"; fi
exit $differences
