#include "emotion_recognition/clip_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

#include "trainkit/core/error.h"
#include "trainkit/media/media.h"

namespace trainkit::emotion {
namespace {

std::string options_text(const ClipDatasetOptions& options) {
  return fmt::format("modality {}, {} frames of {}, {} samples at {} Hz\n", static_cast<int>(options.modality),
                     options.frames, options.image_size, options.samples, options.sample_rate);
}

}  // namespace

std::string origin_of(const ClipDataset& clips) {
  std::string text = media_libraries() + "\n" + options_text(clips.options());
  if (clips.options().modality != Modality::kVisual) text += std::string("sound: ") + kSoundMix + "\n";
  for (const Clip& clip : clips.list().clips) {
    struct stat info {};
    const bool there = ::stat(clip.path.c_str(), &info) == 0;
    text += fmt::format("{} {} {} {}.{:09}\n", clip.path, clip.label, there ? info.st_size : -1, info.st_mtim.tv_sec,
                        info.st_mtim.tv_nsec);
  }
  return text;
}

bool is_lasting(const Error& error) { return error.id == "data.media" || error.id == "data.missing"; }

std::vector<RowCachePart> to_cache(const std::vector<ClipPart>& parts) {
  namespace fs = std::filesystem;
  std::vector<RowCachePart> cached;
  for (const auto& [name, clips] : parts) {
    const ClipList& list = clips->list();
    cached.push_back({.name = name,
                      .rows = clips,
                      .key = fmt::format("{}\n{}\n{}", fs::absolute(list.csv).string(),
                                         fs::absolute(list.folder).string(), options_text(clips->options())),
                      .origin = [clips = clips] { return origin_of(*clips); }});
  }
  return cached;
}

}  // namespace trainkit::emotion
