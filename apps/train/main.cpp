// trainkit-train: trains any PyTorch model that Python has exported.
#include "train/app.h"

int main(int argc, char** argv) {
  trainkit::train::TrainApp app;
  return trainkit::run_app(argc, argv, app);
}
