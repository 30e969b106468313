#!/usr/bin/env bash
# Tests which LibTorch and which nvcc ./dev takes, with folders in place of the real ones: choose_torch_test.sh DEV
set -euo pipefail
dev=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset Torch_DIR TRAINKIT_PYTHON CMAKE_PREFIX_PATH CUDACXX PYTHONPATH PYTHONHOME
failed=0

# make_torch PLACE VERSION CUDA: a Python with this torch, as PLACE/bin/python3.
make_torch() {
  local package=$work/$1/site/torch
  mkdir -p "$work/$1/bin" "$package/share/cmake/Torch" "$package/lib" "$work/$1/site/torch-$2.dist-info" "$work/$1/site/nvidia/cu13/lib"
  printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$2" >"$work/$1/site/torch-$2.dist-info/METADATA"
  touch "$package/__init__.py" "$package/share/cmake/Torch/TorchConfig.cmake" "$package/lib/libtorch_cuda.so"
  echo "set(PACKAGE_VERSION \"$2\")" >"$package/share/cmake/Torch/TorchConfigVersion.cmake"
  echo "cuda: Optional[str] = '$3'" >"$package/version.py"
  echo "libcudart.so.${3%.*}" >"$package/lib/libc10_cuda.so"
  printf '#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' "$work/$1/site" "$(command -v python3)" >"$work/$1/bin/python3"
  chmod +x "$work/$1/bin/python3"
}

# make_nvcc PLACE RELEASE
make_nvcc() {
  mkdir -p "$work/$1/bin"
  printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' "$2" "$2" >"$work/$1/bin/nvcc"
  chmod +x "$work/$1/bin/nvcc"
}

# expect TEXT CODE: CODE, run with ./dev's functions, prints TEXT.
expect() {
  local found code=$2
  found=$( (set -- help; . "$dev" >/dev/null; deps=$work/deps root=$work/none; eval "$code") 2>&1) || true
  [ "$found" = "$1" ] || { printf '%s\n  got      %s\n  expected %s\n' "$2" "$found" "$1"; failed=1; }
}

oldest=$(sed -nE 's/^([0-9]+\.[0-9]+)\..*/\1/p' "$(dirname "$dev")/third_party/torch-versions.txt" | head -n1)
newest=$(sed -nE 's/^([0-9]+\.[0-9]+)\..*/\1/p' "$(dirname "$dev")/third_party/torch-versions.txt" | tail -n1)
make_torch old 2.4.1 12.1
make_torch first "$oldest.0" 13.0
make_torch last "$newest.0+cu132" 13.2
make_torch next 9.0.0 13.9
make_nvcc other 13.0
make_nvcc same 13.2
PATH=$work/old/bin:$work/other/bin:/usr/bin:/bin
cmake_of() { echo "$work/$1/site/torch/share/cmake/Torch"; }
found='find_torch; echo "$torch_cmake ${python:+python}"'

expect " " "$found"  # python3 has a version that is too old
expect "$(cmake_of first) python" "TRAINKIT_PYTHON=$work/first/bin/python3; $found"
expect "$(cmake_of last) python" "PATH=$work/last/bin:\$PATH; $found"
expect " " "PATH=$work/next/bin:\$PATH; $found"  # newer than the range: only if the user names it
expect "$(cmake_of next) " "Torch_DIR=$(cmake_of next); TRAINKIT_PYTHON=$work/last/bin/python3; $found"
expect "$(cmake_of first) python" "CMAKE_PREFIX_PATH=/x:$work/first/site/torch; TRAINKIT_PYTHON=$work/first/bin/python3; $found"
expect "dev: no TorchConfig.cmake in /x" "Torch_DIR=/x; $found"
expect "$(cmake_of first) python" "Torch_DIR=$(cmake_of last); choose_torch oldest; TRAINKIT_PYTHON=$work/last/bin/python3 PATH=$work/first/bin:\$PATH; $found"
expect " " "choose_torch $newest; TRAINKIT_PYTHON=$work/first/bin/python3; $found"

# make_python VERSION: a Python that says it is this version, such as 3.10.
make_python() {
  mkdir -p "$work/python$1/bin"
  printf '#!/bin/sh\n[ "$1" != --version ] || exec echo Python %s\nexec %s -c "import sys; sys.version_info = (%s, 7)$2"\n' \
    "$1" "$(command -v python3)" "${1/./, }" >"$work/python$1/bin/python3"
  chmod +x "$work/python$1/bin/python3"
}

# newest VERSION: installs the newest torch for this Python.
newest() { make_python "$1"; echo "torch_versions=$work/versions PATH=$work/python$1/bin:\$PATH; newest_torch"; }

printf '%s\n' '# release, Python, packages' "$oldest.0 3.10 torchcodec==0.1 torchvision==0.2" "$newest.0 3.11" >"$work/versions"
expect "dev: no release of torch in $work/versions for Python 3.9" "$(newest 3.9)"
expect "$oldest.0" "$(newest 3.10)"
expect "$newest.0" "$(newest 3.11)"
expect "$newest.0" "$(newest 3.20)"
family="torch_versions=$work/versions; test_requirements | tail -n 2 | paste -sd' '"
expect "torchcodec==0.1 torchvision==0.2" "python=$work/first/bin/python3; $family"
expect "torchcodec torchvision" "python=$work/last/bin/python3; $family"

# In another Debian, the release that --torch chooses.
mkdir -p "$work/tree/third_party" "$work/tree/.deps/debian-13"
cp "$dev" "$work/tree/"
cp "$(dirname "$dev")/third_party/torch-versions.txt" "$work/tree/third_party/"
touch "$work/tree/.deps/debian-13/made"
printf '#!/bin/sh\necho "$@" | grep -o "[.]/dev .*"\n' | tee "$work/other/bin/unshare" >"$work/other/bin/sudo"
chmod +x "$work/other/bin/unshare" "$work/other/bin/sudo"
expect "./dev build --torch $(sed -n "s/^\($oldest\.[0-9]*\) .*/\1/p" "$work/tree/third_party/torch-versions.txt")" \
  "'$work/tree/dev' --debian 13 build --torch oldest"
expect "./dev build" "'$work/tree/dev' --debian 13 build"

cuda='install_cuda() { echo from PyPI; nvcc=; }; find_torch; find_cuda; echo "$nvcc"'
expect "$work/other/bin/nvcc" "TRAINKIT_PYTHON=$work/first/bin/python3; $cuda"
expect "$work/same/bin/nvcc" "TRAINKIT_PYTHON=$work/last/bin/python3 PATH=$work/same/bin:\$PATH; $cuda"
expect "$work/other/bin/nvcc" "TRAINKIT_PYTHON=$work/last/bin/python3 CUDACXX=$work/other/bin/nvcc; $cuda"
expect "from PyPI
$work/deps/cuda/bin/nvcc" "TRAINKIT_PYTHON=$work/last/bin/python3; $cuda"
expect "$work/other/bin/nvcc" "Torch_DIR=$(cmake_of last); $cuda"  # no Python from which to install
exit $failed
