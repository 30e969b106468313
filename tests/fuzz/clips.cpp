// Tables of clips and the labels of a run.
#include "emotion_recognition/clips.h"

#include <filesystem>

#include "emotion_recognition/predict.h"
#include "target.h"

namespace trainkit::fuzz::clips {

std::vector<std::string> seeds() {
  return {"Sr No.,Utterance,Emotion,Dialogue_ID,Utterance_ID\n1,\"Hi, you\",joy,0,0\n2,no,anger,0,1\n",
          "path,label,speaker\na.mp4,joy,Ann\nb/c.mp4,anger,\n../d.mp4,joy,Bob\n",
          R"({"labels": ["neutral", "joy"], "column": "Emotion"})", R"(["neutral", "joy"])"};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string path = write_bytes("clips.csv", as_text(data, size)), clip_folder = folder() + "/clips";
  std::filesystem::create_directories(clip_folder + "/b");
  for (const char* name : {"dia0_utt0.mp4", "a.mp4", "b/c.mp4"}) write_bytes(std::string("clips/") + name, "clip");
  const emotion::SplitFiles files = {.csv = path, .folder = clip_folder};
  for (const emotion::ClipColumns& columns :
       {emotion::ClipColumns{}, emotion::ClipColumns{.label = "label", .path = "path", .group = "speaker"}}) {
    const auto list = emotion::read_clips(files, columns, {});
    if (!list.ok()) {
      require_named(list.status(), {"data."});
      continue;
    }
    for (const emotion::Clip& clip : list->clips) {
      require(clip.path.starts_with(clip_folder + "/") && clip.path.find("/../") == clip.path.npos,
              "a clip is below its folder");
      require(clip.label >= 0 && clip.label < std::ssize(list->labels), "a clip has a label");
    }
  }
  const auto labels = emotion::load_labels(path);
  if (!labels.ok()) require_named(labels.status(), {"weights.", "run.", "data."});
  return 0;
}

const Registered target("clips", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::clips
