#!/bin/sh
# Exports the model and trains it: run.sh PROGRAM. 77: there is no Python with PyTorch.
python=${TRAINKIT_PYTHON:-python3}
"$python" -c "import torch" 2>/dev/null || { echo "skipped: no Python with torch"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" "$(dirname "$0")/export.py" "$folder/model.tkm" && "$1" "$folder/model.tkm" "$folder/run"
