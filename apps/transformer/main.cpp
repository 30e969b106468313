// trainkit-transformer: trains a language model of GPT-2's architecture on any text.
#include "transformer/app.h"

int main(int argc, char** argv) {
  trainkit::transformer::TransformerApp app;
  return trainkit::run_app(argc, argv, app);
}
