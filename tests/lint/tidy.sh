#!/usr/bin/env bash
# tests/lint/tidy.sh BUILD [--all]: runs clang-tidy on the sources of the library and programs that differ from the main
# branch, or on all.
set -euo pipefail
build=$1
base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
if [ "${2:-}" = --all ]; then files=$(git ls-files 'libtrainkit/src/*.cpp' 'apps/*.cpp'); else
  files=$( (git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard) |
    grep -E '^(libtrainkit/src|apps)/.*\.cpp$' || true)
fi
[ -n "$files" ] || { echo "no source changed; --all looks at every one"; exit 0; }
xargs -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*' <<<"$files" 2> >(grep -v 'warnings generated' >&2)
