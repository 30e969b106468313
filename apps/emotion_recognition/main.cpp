// Program trainkit-emotion: trains a model that recognises emotions in clips of faces and voices.
#include "emotion_recognition/app.h"

int main(int argc, char** argv) {
  trainkit::emotion::EmotionApp app;
  return trainkit::run_app(argc, argv, app);
}
