// A checkpoint's manifest: unchanged, and with its final digest corrected.
#include "train/checkpoint/checkpoint_manifest.h"

#include "target.h"

namespace trainkit::fuzz::checkpoint_manifest {

namespace {

void check(const std::string& text) {
  const auto manifest = detail::manifest_from_json(text, "manifest.json");
  if (!manifest.ok()) return require_named(manifest.status(), {"ckpt."});
  const auto again = detail::manifest_from_json(detail::manifest_to_json(*manifest), "again.json");
  require(again.ok(), "a value that was read can be written: " + again.status().ToString());
  bool same = again->step == manifest->step && again->files.size() == manifest->files.size();
  for (const auto& [name, record] : manifest->files) {
    const auto other = again->files.find(name);
    same = same && other != again->files.end() && other->second.bytes == record.bytes &&
           other->second.xxh3_128 == record.xxh3_128;
  }
  require(same && manifest->step >= 0, "the manifest is read back");
  // No name leads out of the checkpoint's folder: at worst its file is missing.
  write_bytes(detail::kManifestFile, text);
  const auto folder = Fs::posix().open_directory(fuzz::folder());
  if (const auto verified = detail::verify_files(*folder); !verified.ok()) require_named(verified.status(), {"ckpt."});
}

}  // namespace

std::vector<std::string> seeds() {
  detail::Manifest manifest{.step = 40, .library = "0.1.0", .files = {}};
  manifest.files["model.safetensors"] = {1234, std::string(32, 'a')};
  manifest.files["state.json"] = {7, std::string(32, '0')};
  const std::string text = detail::manifest_to_json(manifest);
  return {text, text.substr(0, text.rfind("\"digest\"")), detail::manifest_to_json({})};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string text(as_text(data, size));
  check(text);
  check(text + "\"digest\": \"" + Digest::of(text) + "\"\n}\n");
  return 0;
}

const Registered target("checkpoint_manifest", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::checkpoint_manifest
