#!/usr/bin/env bash
# tests/lint/tidy.sh BUILD: runs clang-tidy on each source of the library and programs that differs from the main branch.
# tests/lint/tidy.sh BUILD --all [PART...]: on all, or on those of PART, such as apps or libtrainkit/src/train. BUILD
# then compiles several files as one (a unity build): LibTorch's headers are parsed once for all of them.
set -euo pipefail
build=$(realpath "$1")
shift
# Flags of another compiler are not known to clang-tidy. The first line counts warnings in LibTorch's headers.
tidy() {
  xargs -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*' \
    --extra-arg=-Wno-unknown-warning-option "$@" 2> >(grep -v 'warnings generated\|treated as errors' >&2)
}

if [ "${1:-}" = --all ]; then
  shift
  parts=${*:-libtrainkit apps}
  units=$(grep -o "\"file\": \"$build/[^\"]*/Unity/[^\"]*\"" "$build/compile_commands.json" | cut -d'"' -f4 |
    grep -E "^$build/(${parts// /|})/" || true)
  [ -n "$units" ] || { echo "no target has sources in: $parts" >&2; exit 1; }
  # A unity file includes sources; warnings in these count as warnings in headers.
  tidy --checks=-bugprone-suspicious-include --header-filter="$PWD/(libtrainkit|apps)/.*" <<<"$units"
  exit
fi

base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
files=$( (git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard) |
  grep -E '^(libtrainkit/src|apps)/.*\.cpp$' || true)
[ -n "$files" ] || { echo "no source changed; --all looks at every one"; exit 0; }
tidy <<<"$files"
