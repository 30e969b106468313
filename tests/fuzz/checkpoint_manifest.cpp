// A checkpoint's manifest: unchanged, and with its final digest corrected.
#include "train/checkpoint/checkpoint_manifest.h"

#include "target.h"

using namespace trainkit;

namespace {

void check(const std::string& text) {
  const auto manifest = trainkit::detail::manifest_from_json(text, "manifest.json");
  if (!manifest.ok()) return fuzz::require_named(manifest.status(), {"ckpt."});
  const auto again = trainkit::detail::manifest_from_json(trainkit::detail::manifest_to_json(*manifest), "again.json");
  fuzz::require(again.ok(), "a value that was read can be written: " + again.status().ToString());
  bool same = again->step == manifest->step && again->files.size() == manifest->files.size();
  for (const auto& [name, record] : manifest->files) {
    const auto other = again->files.find(name);
    same = same && other != again->files.end() && other->second.bytes == record.bytes &&
           other->second.xxh3_128 == record.xxh3_128;
  }
  fuzz::require(same && manifest->step >= 0, "the manifest is read back");
  // No name leads out of the checkpoint's folder: at worst its file is missing.
  fuzz::write_bytes(trainkit::detail::kManifestFile, text);
  const auto folder = Fs::posix().open_directory(fuzz::folder());
  if (const auto verified = trainkit::detail::verify_files(*folder); !verified.ok())
    fuzz::require_named(verified.status(), {"ckpt."});
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  trainkit::detail::Manifest manifest{.step = 40, .library = "0.1.0", .files = {}};
  manifest.files["model.safetensors"] = {1234, std::string(32, 'a')};
  manifest.files["state.json"] = {7, std::string(32, '0')};
  const std::string text = trainkit::detail::manifest_to_json(manifest);
  return {text, text.substr(0, text.rfind("\"digest\"")), trainkit::detail::manifest_to_json({})};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::as_text(data, size));
  check(text);
  check(text + "\"digest\": \"" + Digest::of(text) + "\"\n}\n");
  return 0;
}
