#!/usr/bin/env bash
# Tests the packages of ./dev package on a fresh Debian with nothing but Python: the wheel, then the .tar.gz, then the .deb,
# each with every program. Prints the time of each step and the disk space it added.
#
#   bare_debian.sh SOURCE WORK [bookworm|trixie]
#
# TRAINKIT_TEST_PACKAGES: a folder with the packages, instead of ./dev package. TRAINKIT_TEST_WHEELS: a folder of wheels
# that pip searches before it downloads. TRAINKIT_TEST_TORCH: folders of Python packages with torch, separated by ':', that
# are mounted instead of what pip would download; each is tested. TRAINKIT_TEST_MIRROR: a mirror of Debian's packages.
set -euo pipefail
source=$1 work=$2 suite=${3:-bookworm}
mirror=${TRAINKIT_TEST_MIRROR:-http://deb.debian.org/debian}

skip() { echo "skipped: $*"; exit 0; }
[ "${TRAINKIT_TEST_FULL:-}" = 1 ] || skip "takes ten minutes; ./dev test --full -R package"
[ "$(id -u)" = 0 ] || skip "debootstrap needs root"
command -v debootstrap >/dev/null || skip "no debootstrap"
command -v curl >/dev/null && { curl -sfI -m 20 "$mirror/dists/$suite/Release" >/dev/null || skip "no network to $mirror"; }

root=$work/root
mounted=()
unmount() {
  local place
  for place in "${mounted[@]}" proc dev/pts dev wheels; do ! mountpoint -q "$root/$place" || umount "$root/$place"; done
}
trap unmount EXIT
# removes the Debian system, but never mounted folders in it
remove() {
  unmount
  ! grep -q " $root/" /proc/mounts || { echo "failed: $root holds mounts of an earlier run" >&2; exit 1; }
  rm -rf --one-file-system "$1"
}
remove "$work"
mkdir -p "$root"

begin=$(date +%s.%N) size=0
# step TEXT: prints the cost of the previous step.
step() {
  local now megabytes
  now=$(date +%s.%N) megabytes=$(du -smx --exclude="$root/torch" --exclude="$root/wheels" "$root" 2>/dev/null | cut -f1)
  printf '==> %s: %.0f s, %+d MB\n' "$1" "$(awk "BEGIN { print $now - $begin }")" \
    "$((${megabytes:-0} - size))"
  begin=$now size=${megabytes:-0}
}
fail() { echo "failed: $*" >&2; exit 1; }

packages=${TRAINKIT_TEST_PACKAGES:-$source/build/packages}
[ -n "${TRAINKIT_TEST_PACKAGES:-}" ] || "$source/dev" package
step "./dev package"
python3 -m venv "$work/audit"
"$work/audit/bin/python" -m pip install --quiet --disable-pip-version-check auditwheel
"$work/audit/bin/python" "$source/tests/package/wheel_test.py" "$packages"/libtrainkit-*.whl
step "auditwheel"
debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$work/debootstrap.log" || fail "debootstrap: $work/debootstrap.log"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev" && mount --bind /dev/pts "$root/dev/pts"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/packages" "$root/wheels"
cp "$packages"/*.* "$root/packages/"
[ -z "${TRAINKIT_TEST_WHEELS:-}" ] || mount -o bind,ro "$TRAINKIT_TEST_WHEELS" "$root/wheels"
# this machine's certificates: it may reach PyPI through a proxy
mkdir -p "$root/etc/trainkit" && cp /etc/ssl/certs/ca-certificates.crt "$root/etc/trainkit/"
step "debootstrap $suite"

inside() {
  env -i PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_FIND_LINKS=/wheels PIP_NO_CACHE_DIR=1 \
    PIP_CERT=/etc/trainkit/ca-certificates.crt ${http_proxy:+http_proxy="$http_proxy"} \
    ${https_proxy:+https_proxy="$https_proxy"} ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    ${torch:+TRAINKIT_TORCH="$torch"} chroot "$root" bash -euo pipefail -c "$*"
}

# expect_one_line PROGRAM TEXT...: checks that it exits with 2 and that its only line on stderr contains each text.
expect_one_line() {
  local program=$1 code=0 text
  shift
  inside "$program --help" >"$work/out" 2>"$work/err" || code=$?
  cat "$work/err"
  [ "$code" = 2 ] || fail "$program exits with $code instead of 2"
  [ "$(wc -l <"$work/err")" = 1 ] || fail "$program prints more than one line"
  for text in "$@"; do grep -q -- "$text" "$work/err" || fail "$program does not say: $text"; done
}

# every_program FOLDER: each program of FOLDER trains 20 steps on its demo data; an empty FOLDER means the PATH.
every_program() {
  inside "$1trainkit --version; $1trainkit doctor --quick || test \$? = 1"
  local program data
  for program in transformer hsi gpt2rec emotion; do
    case $program in
      transformer) data="--input /run/demo --preset shakespeare_char_cpu" ;;
      hsi) data="--cube /run/demo/demo.mat --gt /run/demo/demo_gt.mat" ;;
      gpt2rec) data="--data_dir /run/demo/ml-1m" ;;
      emotion) data="--data_dir /run/demo --model_size simple --frames 4 --image_size 64 --batch_size 4" ;;
    esac
    inside "rm -rf /run/demo /run/trained; $1trainkit-$program --make_demo_data /run/demo >/dev/null
      $1trainkit-$program $data --output_dir /run/trained --device cpu --max_steps 20 --save_every 20 >/run/log 2>&1 || { cat /run/log; exit 1; }
      test -e /run/trained/checkpoints/step-00000020/model.safetensors
      echo trainkit-$program: \$(grep -h '^20 steps in ' /run/log)"
  done
}

inside "apt-get -qq update; apt-get -qq install -y --no-install-recommends python3-venv >/dev/null; python3 -m venv /opt/venv"
step "apt-get install python3-venv"

# The wheel.
inside "pip install --quiet --no-deps /packages/libtrainkit-*.whl"
step "pip install the wheel"
expect_one_line trainkit "error\[torch.missing\]" "pip install"
if [ -n "${TRAINKIT_TEST_TORCH:-}" ]; then
  IFS=: read -ra folders <<<"$TRAINKIT_TEST_TORCH"
  for folder in "${folders[@]}"; do
    mkdir -p "$root/torch"
    mount -o bind,ro "$folder" "$root/torch" && mounted+=(torch)
    torch=/torch/torch every_program ""
    step "every program of the wheel with $(sed -n "s/^__version__ = //p" "$folder/torch/version.py")"
    [ "$folder" = "${folders[-1]}" ] || umount "$root/torch"
  done
  torch=/torch/torch
else
  inside "pip install --quiet /packages/libtrainkit-*.whl"
  step "pip install torch"
  every_program ""
  step "every program of the wheel"
fi
inside "pip uninstall --quiet -y libtrainkit"

# The .tar.gz, moved after unpacking, and the .deb.
inside "tar -C /opt -xzf /packages/trainkit-*.tar.gz; mv /opt/trainkit-* /opt/moved"
step "unpacking the .tar.gz"
every_program /opt/moved/bin/
step "every program of the .tar.gz"
inside "rm -r /opt/moved; apt-get -qq install -y --no-install-recommends /packages/trainkit_*.deb >/dev/null"
step "apt-get install the .deb"
every_program /usr/bin/
step "every program of the .deb"
remove "$root"
echo "passed"
