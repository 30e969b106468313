#!/usr/bin/env bash
# Builds the libraries that packages carry, from Debian's source packages: those that are loaded at their first use, under
# names of our own, and the header of the web server.
#
#   libraries.sh WORK FOLDER
#
# FOLDER gets libtrainkit_ffmpeg.so (LGPL configuration: only the formats of docs/guide/media.md), libtrainkit_hdf5.so (HDF5
# and matio), include/httplib.h, and licences/. It is complete if FOLDER/complete names the version of this script.
set -euo pipefail
mkdir -p "$1" "$2"
work=$(realpath "$1") folder=$(realpath "$2")
version=$(cksum <"$0")
[ "$(cat "$folder/complete" 2>/dev/null)" != "$version" ] || exit 0
. /etc/os-release

# Debian's sources of this release, without a change to the system's list of sources.
cd "$work"
mkdir -p lists/partial
for archive in "debian $VERSION_CODENAME" "debian-security $VERSION_CODENAME-security"; do
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/$archive main"
done >sources.list
apt=(-o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$work/lists" -o APT::Sandbox::User=root)
apt-get -qq "${apt[@]}" update

# source_of PACKAGE: unpacks its sources, with Debian's patches, in the folder of that name.
source_of() {
  rm -rf "$1" "$1"_*
  apt-get -qq "${apt[@]}" source --download-only "$1"
  dpkg-source -x "$1"_*.dsc "$1" >/dev/null
}

# hypot() has a version of its own since glibc 2.35; the older one suits older systems.
cat >glibc.c <<'C'
double older_hypot(double, double);
__asm__(".symver older_hypot, hypot@GLIBC_2.2.5");
double hypot(double x, double y) { return older_hypot(x, y); }
C
cc -c -O2 -fPIC -fno-builtin glibc.c

# licence NAME SOURCE FILES...: keeps the licence of a library, and where its source is.
licence() {
  mkdir -p "$folder/licences"
  { printf '%s\nSource: %s\n\n' "$1" "$2"; cat "${@:3}"; } >"$folder/licences/$1.txt"
}

# of_debian NAME PACKAGE: the same for a static library of Debian's package, with its version.
of_debian() {
  licence "$1" "Debian package $(dpkg-query -W -f='${source:Package} ${source:Version}' "$2"), deb.debian.org" "/usr/share/doc/$2/copyright"
}

source_of ffmpeg
decoders=h264,hevc,vp8,vp9,mpeg4,aac,mp3,mp3float,opus,vorbis,flac
decoders+=,pcm_s8,pcm_u8,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,pcm_f32le,pcm_f32be,pcm_f64le,pcm_f64be,pcm_alaw,pcm_mulaw
(cd ffmpeg && ./configure --enable-pic --enable-static --disable-shared --disable-programs --disable-doc --disable-autodetect --disable-everything \
  --disable-debug --disable-network --disable-avdevice --disable-avfilter --disable-postproc \
  --enable-demuxer=mov,matroska,avi,wav,flac,mp3 --enable-decoder="$decoders" \
  --enable-parser=h264,hevc,vp8,vp9,mpeg4video,aac,mpegaudio,opus,vorbis,flac --enable-muxer=mp4 --enable-encoder=mpeg4,aac \
  --enable-bsf=aac_adtstoasc,vp9_superframe_split,mpeg4_unpack_bframes >configure.log && make -j "$(nproc)" >make.log 2>&1)
printf '{ global: av*; sw*; local: *; };\n' >exported
cc -shared -o "$folder/libtrainkit_ffmpeg.so" -Wl,-soname,libtrainkit_ffmpeg.so -Wl,--version-script=exported -Wl,-Bsymbolic -Wl,-z,defs -s \
  glibc.o -Wl,--whole-archive ffmpeg/lib{avformat,avcodec,swscale,swresample,avutil}/*.a -Wl,--no-whole-archive -lm -pthread
licence FFmpeg "Debian source package ffmpeg $(sed -n 's/^Version: *//p' ffmpeg_*.dsc), deb.debian.org, configured as packaging/libraries.sh says" \
  ffmpeg/COPYING.LGPLv2.1

source_of hdf5
(cd hdf5 && ./configure --disable-shared --enable-static --with-pic --disable-hl --disable-tests --disable-tools --enable-threadsafe \
  --enable-build-mode=production --with-szlib >configure.log 2>&1 && make -C src -j "$(nproc)" >make.log 2>&1)
# Debian's archive of matio is compiled for programs: it takes the variables stderr and stdout for some of the program.
objcopy --redefine-sym stderr=matio_stderr --redefine-sym stdout=matio_stdout "$(cc -print-file-name=libmatio.a)" libmatio.a
cat >matio.c <<'C'
#include <stdio.h>
__attribute__((visibility("hidden"))) FILE *matio_stderr, *matio_stdout;
__attribute__((constructor)) static void set(void) { matio_stderr = stderr, matio_stdout = stdout; }
C
printf '{ global: H5*; Mat_*; local: *; };\n' >exported
cc -shared -fPIC -O2 -o "$folder/libtrainkit_hdf5.so" -Wl,-soname,libtrainkit_hdf5.so -Wl,--version-script=exported -Wl,-Bsymbolic -Wl,-z,defs -s matio.c \
  -Wl,--whole-archive libmatio.a hdf5/src/.libs/libhdf5.a -Wl,--no-whole-archive -l:libsz.a -l:libaec.a -l:libz.a -lm -ldl -pthread
licence HDF5 "Debian source package hdf5 $(sed -n 's/^Version: *//p' hdf5_*.dsc), deb.debian.org" hdf5/COPYING
of_debian matio libmatio-dev
of_debian libaec libaec-dev

source_of cpp-httplib
mkdir -p "$folder/include"
cp cpp-httplib/httplib.h "$folder/include/"
licence cpp-httplib "Debian source package cpp-httplib $(sed -n 's/^Version: *//p' cpp-httplib_*.dsc), deb.debian.org" cpp-httplib/LICENSE

# Linked into the programs from Debian's archives.
of_debian Abseil libabsl-dev
of_debian fmt libfmt-dev
of_debian glibc libc6-dev  # the launcher
of_debian jemalloc libjemalloc-dev
of_debian libpng libpng-dev
of_debian nlohmann-json nlohmann-json3-dev
of_debian protozero libprotozero-dev
of_debian xxHash libxxhash-dev
of_debian yaml-cpp libyaml-cpp-dev
of_debian zlib zlib1g-dev
echo "$version" >"$folder/complete"
