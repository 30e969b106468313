#include "gpt2_recommender/trained_vectors.h"

#include <c10/core/InferenceMode.h>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/session.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {

absl::StatusOr<Interactions> open_catalog(const TrainedRun& run) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string catalog, run.file(kCatalogFile, "its users and items"));
  TRAINKIT_ASSIGN_OR_RETURN(const std::string split, run.file(kSplitFile, "its interactions"));
  return load_catalog(catalog, split);
}

absl::StatusOr<RankingVectors> load_vectors(const TrainedRun& run, const RecOptions& options,
                                            const Interactions& catalog) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto metadata, read_metadata(options, catalog));
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor,
                            run.load([&] { return make_recommender(options, catalog, metadata); }));
  const c10::InferenceMode inference;
  return dynamic_cast<Recommender&>(predictor.model()).vectors();
}

}  // namespace trainkit::rec
