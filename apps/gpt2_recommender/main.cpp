// Program trainkit-gpt2rec: trains a recommender.
#include "gpt2_recommender/app.h"

int main(int argc, char** argv) {
  trainkit::rec::RecommenderApp app;
  return trainkit::run_app(argc, argv, app);
}
