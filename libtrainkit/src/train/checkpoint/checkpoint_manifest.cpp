#include "train/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/strict_json.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::json;

constexpr int kManifestSchema = 1;
constexpr int64_t kMaxManifestBytes = 1 << 20;
constexpr std::string_view kLibrary = TRAINKIT_VERSION;

/// Formats the last member of the object, the digest of every byte before it.
std::string digest_member(std::string_view text_before) {
  return fmt::format("\"digest\": \"{}\"\n}}\n", Digest::of(text_before));
}

absl::Status malformed(const std::string& path, const std::string& field) {
  Error error = checkpoint_error("ckpt.manifest", path, "is missing or malformed");
  error.field = field;
  return to_status(error);
}

// Note [Verification of a checkpoint]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Nothing in a checkpoint is parsed before its bytes have been verified. The manifest is checked first. Its last member
// is a digest of every byte before it, compared as text. A truncated or changed manifest is therefore rejected before
// the JSON parser sees it. Then each listed file is checked: size first (cheap, finds truncation), then digest. A file
// that the manifest does not list is an error too: it may be a remnant of another checkpoint. File names in the
// manifest are looked up inside the folder only, since Directory rejects names with separators. The digest (XXH3, 128
// bits) detects accidents and is not collision-resistant. It does not protect against an attacker; the parsers behind
// it validate their input themselves.

absl::Status check_digest(std::string_view text, const std::string& path) {
  const size_t tail = digest_member({}).size();
  const std::string_view before = text.substr(0, text.size() - std::min(tail, text.size()));
  if (text.size() > tail && text.substr(before.size()) == digest_member(before)) return absl::OkStatus();
  return to_status(
      checkpoint_error("ckpt.digest", path, "does not match its own digest: it is truncated or was changed"));
}

absl::Status check_file(const Directory& checkpoint, const std::string& name, const FileRecord& record) {
  const auto file = checkpoint.open_file(name);
  if (!file.ok()) return reclassify(file.status(), ExitCode::kWeights, "ckpt.file");
  Error error = checkpoint_error("ckpt.size", file->path(), "size differs from the manifest");
  if (file->size_bytes() != record.bytes) {
    error.got = fmt::format("{} bytes", file->size_bytes());
    error.expected = fmt::format("{}", record.bytes);
    return to_status(error);
  }
  const auto digest = digest_of(*file);
  if (!digest.ok()) return reclassify(digest.status(), ExitCode::kWeights, "ckpt.file");
  if (*digest == record.xxh3_128) return absl::OkStatus();
  error = checkpoint_error("ckpt.digest", file->path(), "digest mismatch");
  error.got = *digest;
  error.expected = record.xxh3_128;
  return to_status(error);
}

absl::StatusOr<Manifest> read_manifest(const Directory& checkpoint) {
  const auto text = checkpoint.read_file(kManifestFile, kMaxManifestBytes);
  if (!text.ok()) return reclassify(text.status(), ExitCode::kWeights, "ckpt.file");
  return manifest_from_json(*text, checkpoint.path() + "/" + kManifestFile);
}

}  // namespace

Error checkpoint_error(std::string id, std::string where, std::string problem) {
  return {
      .exit_code = ExitCode::kWeights, .id = std::move(id), .where = std::move(where), .problem = std::move(problem)};
}

std::string manifest_to_json(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, record] : manifest.files)
    files[name] = {{"bytes", record.bytes}, {"xxh3_128", record.xxh3_128}};
  const std::string text =
      fmt::format("{{\n\"schema\": {},\n\"library\": {},\n\"step\": {},\n\"files\": {},\n", kManifestSchema,
                  Json(manifest.library.empty() ? kLibrary : manifest.library).dump(), manifest.step, files.dump(1));
  return text + digest_member(text);
}

absl::StatusOr<Manifest> manifest_from_json(std::string_view text, const std::string& path) {
  TRAINKIT_RETURN_IF_ERROR(check_digest(text, path));
  TRAINKIT_ASSIGN_OR_RETURN(const Json json, parse_strict_json(text, checkpoint_error("ckpt.manifest", path, {})));
  if (!json.contains("schema") || !json["schema"].is_number_integer()) return malformed(path, "schema");
  if (json["schema"] != kManifestSchema) {
    Error error = checkpoint_error("ckpt.schema", path, "was written by another version of the library");
    error.field = "schema";
    error.got = json["schema"].dump();
    error.expected = fmt::format("{}", kManifestSchema);
    return to_status(error);
  }
  Manifest manifest;
  const auto step = json.contains("step") ? json_integer(json["step"]) : std::nullopt;
  if (!step || *step < 0) return malformed(path, "step");
  manifest.step = *step;
  if (!json.contains("library") || !json["library"].is_string()) return malformed(path, "library");
  manifest.library = json["library"].get<std::string>();
  if (!json.contains("files") || !json["files"].is_object()) return malformed(path, "files");
  for (const auto& [name, record] : json["files"].items()) {
    const auto bytes = record.is_object() && record.contains("bytes") ? json_integer(record["bytes"]) : std::nullopt;
    if (!bytes || *bytes < 0 || !record.contains("xxh3_128") || !record["xxh3_128"].is_string())
      return malformed(path, "files." + name);
    manifest.files[name] = {*bytes, record["xxh3_128"].get<std::string>()};
  }
  return manifest;
}

absl::StatusOr<Manifest> verify_files(const Directory& checkpoint) {
  TRAINKIT_ASSIGN_OR_RETURN(auto manifest, read_manifest(checkpoint));
  const auto names = checkpoint.list();
  if (!names.ok()) return reclassify(names.status(), ExitCode::kWeights, "ckpt.file");
  for (const std::string& name : *names) {
    if (name == kManifestFile || manifest.files.contains(name)) continue;
    return to_status(checkpoint_error("ckpt.extra", checkpoint.path() + "/" + name,
                                      "is not in the checkpoint's manifest: remove it if you put it there"));
  }
  for (const auto& [name, record] : manifest.files) TRAINKIT_RETURN_IF_ERROR(check_file(checkpoint, name, record));
  return manifest;
}

absl::Status verify_file(const Directory& checkpoint, const std::string& name) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto manifest, read_manifest(checkpoint));
  const auto record = manifest.files.find(name);
  if (record != manifest.files.end()) return check_file(checkpoint, name, record->second);
  return to_status(checkpoint_error("ckpt.manifest", checkpoint.path(), "the manifest does not list " + name));
}

}  // namespace trainkit::detail
