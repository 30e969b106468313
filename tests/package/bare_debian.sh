#!/usr/bin/env bash
# Tests the packages of ./dev package on a fresh Debian 12: the .tar.gz, then the .debs, then the wheel, each with
# PyPI's LibTorch. Prints the time of each step and the disk space it added.
#
#   bare_debian.sh SOURCE WORK
#
# TRAINKIT_TEST_PACKAGES: a folder with the packages, instead of ./dev package. TRAINKIT_TEST_WHEELS: a folder of wheels
# that pip searches before it downloads. TRAINKIT_TEST_MIRROR: a mirror of Debian's packages.
set -euo pipefail
source=$1 work=$2
mirror=${TRAINKIT_TEST_MIRROR:-http://deb.debian.org/debian}

skip() { echo "skipped: $*"; exit 0; }
[ "${TRAINKIT_TEST_FULL:-}" = 1 ] || skip "takes ten minutes; ./dev test --full -R package"
[ "$(id -u)" = 0 ] || skip "debootstrap needs root"
command -v debootstrap >/dev/null || skip "no debootstrap"
command -v curl >/dev/null && { curl -sfI -m 20 "$mirror/dists/bookworm/Release" >/dev/null || skip "no network to $mirror"; }

root=$work/root
unmount() { for place in proc dev/pts dev wheels; do ! mountpoint -q "$root/$place" || umount "$root/$place"; done; }
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
  now=$(date +%s.%N) megabytes=$(du -sm --exclude=proc --exclude=dev --exclude=wheels "$root" 2>/dev/null | cut -f1)
  printf '==> %s: %.0f s, %+d MB\n' "$1" "$(awk "BEGIN { print $now - $begin }")" \
    "$((${megabytes:-0} - size))"
  begin=$now size=${megabytes:-0}
}
fail() { echo "failed: $*" >&2; exit 1; }

packages=${TRAINKIT_TEST_PACKAGES:-$source/build/packages}
[ -n "${TRAINKIT_TEST_PACKAGES:-}" ] || "$source/dev" package
step "./dev package"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/debootstrap.log" || fail "debootstrap: $work/debootstrap.log"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev" && mount --bind /dev/pts "$root/dev/pts"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/packages" "$root/wheels" "$root/consumer"
cp "$packages"/* "$root/packages/"
cp "$source"/examples/consumer/* "$root/consumer/"
[ -z "${TRAINKIT_TEST_WHEELS:-}" ] || mount -o bind,ro "$TRAINKIT_TEST_WHEELS" "$root/wheels"
# this machine's certificates: it may reach PyPI through a proxy
mkdir -p "$root/etc/trainkit" && cp /etc/ssl/certs/ca-certificates.crt "$root/etc/trainkit/"
step "debootstrap"

inside() {
  env -i PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_FIND_LINKS=/wheels PIP_NO_CACHE_DIR=1 \
    PIP_CERT=/etc/trainkit/ca-certificates.crt ${http_proxy:+http_proxy="$http_proxy"} \
    ${https_proxy:+https_proxy="$https_proxy"} ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    chroot "$root" bash -euo pipefail -c "$*"
}

# expect_one_line PROGRAM TEXT...: checks that it exits with 2 and that its first line on stderr contains each text.
expect_one_line() {
  local program=$1 code=0 text
  shift
  inside "$program --help" >"$work/out" 2>"$work/err" || code=$?
  cat "$work/err"
  [ "$code" = 2 ] || fail "$program exits with $code instead of 2"
  [ "$(grep -vc '^  hint: ' "$work/err")" = 1 ] || fail "$program prints more than one line"
  for text in "$@"; do grep -q -- "$text" "$work/err" || fail "$program does not say: $text"; done
}

# trains PROGRAM: trains 50 steps on text.
trains() {
  inside "rm -rf /run/text /run/trained; $1 --make_demo_data /run/text >/dev/null
    $1 --input /run/text --output_dir /run/trained --device cpu --preset shakespeare_char_cpu --max_steps 50 --save_every 50 \
      2>&1 | grep '^50 steps in '; test -e /run/trained/checkpoints/step-00000050/model.safetensors"
}

# The .tar.gz.
inside "apt-get -qq update; apt-get -qq install -y --no-install-recommends python3-venv >/dev/null"
step "apt-get install python3-venv"
inside "tar -C /opt -xzf /packages/trainkit-*.tar.gz; mv /opt/trainkit-* /opt/trainkit"
step "unpacking the .tar.gz"
expect_one_line /opt/trainkit/bin/trainkit "pip install torch==2.11.0"
inside "python3 -m venv /opt/venv; pip install --quiet torch==2.11.0"
step "pip install torch==2.11.0"
# trainkit links every library of the trainers, and a web server for `trainkit watch`
expect_one_line /opt/trainkit/bin/trainkit "missing shared libraries: .* and .* more" "apt-get install .*libyaml-cpp.*libcpp-httplib"
inside "$(sed -n 's/.*\(apt-get install\)/\1 -qq -y --no-install-recommends/p' "$work/err") >/dev/null"
step "the libraries that the hint names"
inside "/opt/trainkit/bin/trainkit doctor"
trains /opt/trainkit/bin/trainkit-transformer
step "doctor and 50 steps with the .tar.gz"
inside "mv /opt/trainkit /opt/moved"
inside "env PATH=/usr/bin:/bin TRAINKIT_TORCH=\$(/opt/venv/bin/python -c 'import importlib.util as u; print(u.find_spec(\"torch\").submodule_search_locations[0])') /opt/moved/bin/trainkit --version"
inside "rm -r /opt/moved"

# The .debs.
inside "apt-get -qq install -y --no-install-recommends /packages/trainkit_*.deb >/dev/null"
step "apt-get install the .deb of the programs"
inside "trainkit doctor"
trains trainkit-transformer
step "doctor and 50 steps with the .deb"
inside "apt-get -qq install -y --no-install-recommends /packages/libtrainkit-dev_*.deb g++ cmake make pkg-config >/dev/null"
step "apt-get install libtrainkit-dev, g++, cmake, make, pkg-config"
consumer='rm -rf /consumer/build; cmake -S /consumer -B /consumer/build -DCMAKE_PREFIX_PATH="$(trainkit --cmake_prefix)" -DCMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build /consumer/build >/dev/null; /consumer/build/consumer'
inside "$consumer"
step "consumer with CMake"
inside 'torch=$(trainkit --cmake_prefix | cut -d";" -f2)
  g++ -O2 /consumer/main.cpp -o /consumer/by_pkg_config $(pkg-config --define-variable=torch="$torch" --cflags --libs trainkit)
  /consumer/by_pkg_config'
step "consumer with pkg-config"
inside "apt-get -qq purge -y trainkit libtrainkit-dev >/dev/null"

# The wheel; apt does not remove the libraries that the .debs needed.
inside "pip install --quiet /packages/trainkit-*.whl; command -v trainkit | grep -x /opt/venv/bin/trainkit"
step "pip install the wheel"
inside "trainkit doctor"
trains trainkit-transformer
inside "for program in trainkit-hsi trainkit-gpt2rec trainkit-emotion; do \$program --help >/dev/null; done"
step "doctor and 50 steps with the wheel"
inside "$consumer"
step "consumer with the wheel"
du -sm --exclude=proc "$root/opt/venv" | awk '{ print "==> the environment with torch and the wheel: " $1 " MB" }'
remove "$root"
echo "passed"
