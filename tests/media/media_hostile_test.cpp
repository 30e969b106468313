// Broken, truncated, unrelated or malicious files: each gives one error that names the file and the problem.
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>

#include "arrays/mat_bytes.h"
#include "io/mutations.h"
#include "media/media_clips.h"
#include "test_util.h"
#include "trainkit/media/media.h"

using namespace trainkit;
using namespace std::string_literals;
using test::read_bytes;
using test::write_bytes;

namespace {

template <class Number>
std::string little(Number value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string big(uint32_t value) {
  std::string bytes = little(value);
  return std::string(bytes.rbegin(), bytes.rend());
}

std::string box(const std::string& name, const std::string& body) {
  return big(static_cast<uint32_t>(8 + body.size())) + name + body;
}

std::string chunk(const std::string& name, const std::string& body) {
  return name + little(static_cast<uint32_t>(body.size())) + body + std::string(body.size() % 2, '\0');
}

struct WaveFormat {
  uint16_t tag = 1, channels = 1;
  uint32_t rate = 16'000;
  uint16_t block = 2, bits = 16;
  std::string chunk() const {
    return ::chunk("fmt ",
                   little(tag) + little(channels) + little(rate) + little(rate * block) + little(block) + little(bits));
  }
};

std::string wave(const std::string& chunks) {
  return "RIFF" + little(static_cast<uint32_t>(4 + chunks.size())) + "WAVE" + chunks;
}
std::string wave(const WaveFormat& format, const std::string& samples) {
  return wave(format.chunk() + chunk("data", samples));
}

const std::string kSilence(3200, '\0');

/// A small clip with both tracks; created once.
const std::string& sound_clip() {
  static const std::string bytes = [] {
    const test::TempDir folder;
    REQUIRE(write_media(folder / "f.mp4", test::moving_disc(30, 48, 64), test::tone(500, 16'000, 16'000),
                        {.sample_rate = 16'000, .keyframe_interval = 10}) == absl::OkStatus());
    return read_bytes(folder / "f.mp4");
  }();
  return bytes;
}

std::string patched(const std::string& at, size_t offset, const std::string& with) {
  std::string bytes = sound_clip();
  const size_t found = bytes.find(at);
  REQUIRE(found != std::string::npos);
  return bytes.replace(found + offset, with.size(), with);
}

/// Opens a file and reads all of it.
absl::Status read_all(const std::string& path, const MediaOptions& options = {}) {
  const auto clip = MediaFile::open(path, options);
  absl::Status status = clip.status();
  if (clip.ok() && clip->video()) status.Update(clip->spread_frames(8, {.height = 32, .width = 32}).status());
  if (clip.ok() && clip->audio()) status.Update(clip->samples().status());
  return status;
}

bool has_form(const absl::Status& status, const std::string& path) {
  const std::string line = error_line(status);
  const bool printable =
      std::none_of(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  const std::string id = error_of(status).value_or(Error{}).id;
  return line.size() <= 400 && printable && line.find(path) != std::string::npos &&
         (id == "data.media" || id == "data.timeout");
}

/// This process's memory from /proc: "VmRSS:" is the current size, "VmHWM:" the peak since reset_peak.
int64_t resident_bytes(const std::string& which) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(which)) return std::stoll(line.substr(which.size())) * 1024;
  }
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

TEST_CASE("A broken file or one without media gives one clear error", "[io][media]") {
  const test::TempDir folder;
  const std::string& good = sound_clip();
  const std::string name = "file:///etc/passwd";
  const std::string xml = "<?xml version=\"1.0\"?><MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\"></MPD>\n";
  std::string deep = box("trak", "");
  for (int i = 0; i < 200; ++i) deep = box("trak", deep);
  const uint32_t rf64 = 0xffffffff;
  const struct {
    const char* name;
    std::string bytes;
    const char* says;  // "": it can be read
  } rows[] = {
      {"empty", "", "is empty"},
      {"one byte", "x", "is not a video or audio file"},
      {"text", std::string(3000, 'a'), "is not a video or audio file"},
      {"playlist of files", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + name + "\n#EXT-X-ENDLIST\n",
       "container is not allowed (got 'hls'"},
      {"playlist of addresses", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n",
       "container is not allowed (got 'hls'"},
      {"ffconcat", "ffconcat version 1.0\nfile '" + name + "'\n", "container is not allowed (got 'concat'"},
      {"SDP", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
       "container is not allowed (got 'sdp'"},
      {"DASH", xml, "is not a video or audio file"},
      {"zip", "PK\3\4" + std::string(2000, '\0'), "is not a video or audio file"},
      {"png", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0"s + std::string(99, '\0'),
       "container is not allowed (got 'png_pipe'"},
      {"no moov", good.substr(0, good.find("moov") - 4), "has no header that can be read: moov atom not found"},
      {"box of size 1", patched("moov", -4, big(1)), "box 'moov' at 0x"},
      {"box of size 7", patched("trak", -4, big(7)), "has size 7"},
      {"box beyond the file", patched("moov", -4, big(0x7fffffff)), "claims 2147483647 bytes"},
      {"box beyond its parent", patched("stbl", -4, big(1 << 20)), "box 'stbl'"},
      {"boxes in boxes", good.substr(0, 32) + box("moov", deep), "boxes nested over 16 levels"},
      {"samples that no file has", patched("stsz", 8, big(1) + big(400'000'000)), "claims 400000000 entries"},
      {"chunks that no box has", patched("stco", 8, big(100'000'000)), "claims 100000000 entries"},
      {"runs that no file has", good + box("moof", box("traf", box("trun", big(0) + big(300'000'000)))), "box 'trun'"},
      {"compressed header", box("ftyp", "isom" + big(512)) + box("moov", box("cmov", std::string(64, '\0'))),
       "compressed 'moov'"},
      {"no stream", good.substr(0, 32) + box("moov", box("mvhd", std::string(100, '\0'))), "neither video nor audio"},
      {"unknown video codec", patched("avc1\0"s, 0, "zzzz"), "codec is not allowed (got 'none'"},
      {"0 x 0 pixels in the header", patched("avc1\0\0\0\0\0\0\0\1"s, 28, std::string(4, '\0')),
       ""},  // H.264 has its own size
      {"65535 x 65535 pixels", patched("avc1\0\0\0\0\0\0\0\1"s, 28, std::string(4, '\xff')), "pictures are too large"},
      {"frames that last for months", patched("stts", 16, big(10'000'000)), ""},  // the edit list ends after one frame
      {"frames that last no time", patched("stts", 16, big(0)), ""},
      {"encrypted", patched("avc1\0"s, 0, "encv"), "codec is not allowed (got 'none'"},
      {"no parameter sets", patched("avcC", 0, "avcX"), "video"},
      {"wav", wave({}, kSilence), ""},
      {"wav of a stream", wave(WaveFormat{}.chunk() + "data" + little(rf64) + kSilence),
       "claims 4294967295 bytes, 3200 remain"},
      {"wav cut", wave({}, kSilence).substr(0, 1500), "claims 3244 bytes, 1500 remain (truncated?)"},
      {"samples cut", wave(WaveFormat{}.chunk() + "data" + little(uint32_t{5000}) + kSilence),
       "chunk 'data' at 0x24 claims 5000 bytes, 3200"},
      {"0 channels", wave({.channels = 0}, kSilence), "the 'fmt ' chunk is invalid: 0 channels"},
      {"255 channels", wave({.channels = 255, .block = 510}, std::string(5100, '\0')), "audio"},
      {"rate 0", wave({.rate = 0}, kSilence), "0 Hz"},
      {"rate 10 MHz", wave({.rate = 10'000'000}, kSilence), "10000000 Hz"},
      {"7 bits", wave({.bits = 7}, kSilence), "7 bits"},
      {"no fmt", wave(chunk("data", kSilence)), "no 'fmt ' before the samples"},
      {"fmt after data", wave(chunk("data", kSilence) + WaveFormat{}.chunk()), "no 'fmt ' before the samples"},
      {"block of 0", wave({.block = 0}, kSilence), "blocks of 0 bytes"},
      {"RF64 cut",
       "RF64" + little(rf64) + "WAVE" +
           chunk("ds64", little(uint64_t{9000}) + little(uint64_t{8000}) + std::string(12, '\0')) +
           WaveFormat{}.chunk() + "data" + little(rf64) + kSilence,
       "chunk 'data'"},
      {"not a number", wave({.tag = 3, .block = 4, .bits = 32}, little(0.5F) + little(NAN) + little(0.25F)),
       "sample 1 is not finite (got 'nan')"},
      {"silence", wave({}, kSilence), ""},
      {"mp3 in wav without mp3", wave({.tag = 0x55}, kSilence), "audio is damaged"},
      {"odd padding", wave(chunk("LIST", "INFOabc") + WaveFormat{}.chunk() + chunk("data", kSilence)), ""},
      {"cut EBML", "\x1a\x45\xdf\xa3\x9f\x42\x86"s, "EBML header is cut"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const std::string path = folder / "f.mp4";  // the name gives no hint
    write_bytes(path, row.bytes);
    reset_peak();
    const int64_t before = resident_bytes("VmRSS:");
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = read_all(path);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
    CHECK(resident_bytes("VmHWM:") - before < int64_t{256} << 20);
    CHECK(status.ok() == (*row.says == 0));
    if (status.ok()) continue;
    CHECK(has_form(status, path));
    // FFmpeg 7 refuses a playlist with another name when it looks at its beginning.
    const bool is_refused_playlist =
        row.bytes.starts_with("#EXTM3U") && error_line(status).find("Not detecting m3u8") != std::string::npos;
    if (!is_refused_playlist) CHECK_THAT(error_line(status), Catch::Contains(row.says));
  }
}

TEST_CASE("Special files are refused immediately", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& path : {folder / "pipe", folder.path().string(), std::string("/dev/zero")}) {
    CAPTURE(path);
    CHECK_THAT(error_line(MediaFile::open(path).status()), Catch::Contains("error[data.unreadable]"));
  }
}

TEST_CASE("A clip of one frame gives that frame", "[io][media]") {
  const test::TempDir folder;
  REQUIRE(write_media(folder / "f.mp4", test::moving_disc(1, 32, 32), {}) == absl::OkStatus());
  const auto clip = MediaFile::open(folder / "f.mp4");
  REQUIRE(clip.status() == absl::OkStatus());
  const auto frames = clip->spread_frames(4);
  REQUIRE(frames.status() == absl::OkStatus());
  CHECK(at::equal(frames->data[0], frames->data[3]));
  CHECK_THAT(error_line(clip->samples().status()), Catch::Contains("has no audio"));
}

TEST_CASE("Every prefix of a clip is an error", "[io][media]") {
  const test::TempDir folder;
  const std::pair<std::string, std::string> clips[] = {{"mp4", sound_clip()}, {"wav", wave({}, kSilence)}};
  for (const auto& [kind, bytes] : clips) {
    CAPTURE(kind);
    REQUIRE(bytes.size() < 64 << 10);
    const std::string path = folder / "f.mp4";
    write_bytes(path, bytes);
    REQUIRE(read_all(path) == absl::OkStatus());
    int64_t refused = 0;
    for (size_t size = bytes.size(); size-- > 0;) {
      std::filesystem::resize_file(path, size);
      const absl::Status status = read_all(path);
      if (status.ok() || !has_form(status, path)) FAIL_CHECK(size << " bytes: " << status);
      refused += !status.ok();
    }
    CHECK(refused == std::ssize(bytes));
  }
}

TEST_CASE("No mutation of a clip ends the process, hangs, or gives an error without a name", "[io][media]") {
  const int count = test::is_full() ? 50'000 : 2000;
  struct Tally {
    std::atomic<int> read{0}, refused{0}, unnamed{0};
  };
  const test::TempDir folder;
  const std::string& good = sound_clip();
  const size_t moov = good.find("moov");
  // The whole file, and its header, which is small compared with the frames.
  for (const auto& [name, first] : {std::pair("whole", size_t{0}), std::pair("header", moov)}) {
    const test::Shared<Tally> shared;
    Tally& tally = *shared;
    const std::vector<int> ended = test::ended_by(count / 2, [&](int number) {
      const std::string path = folder / "f.mp4";
      write_bytes(path, test::mutated(good, number, first));
      const absl::Status status = read_all(path, {.timeout = std::chrono::seconds(5)});
      ++(status.ok() ? tally.read : has_form(status, path) ? tally.refused : tally.unnamed);
      if (!status.ok() && !has_form(status, path)) std::cerr << status << std::endl;
    });
    std::cout << name << ": " << tally.read << " read, " << tally.refused << " refused, " << ended.size()
              << " ended the process" << std::endl;
    CAPTURE(ended);
    CHECK(ended.empty());
    CHECK(tally.unnamed == 0);
    CHECK(tally.refused > count / 20);
  }
}
