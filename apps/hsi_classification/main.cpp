// trainkit-hsi: classifies the pixels of a hyperspectral scene.
#include "hsi_classification/app.h"

int main(int argc, char** argv) {
  trainkit::hsi::HsiApp app;
  return trainkit::run_app(argc, argv, app);
}
