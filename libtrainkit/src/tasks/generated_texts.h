#pragma once
// The texts that a model has generated during a run. Internal to the task of language models.

#include <absl/status/status.h>

#include <cstdint>
#include <limits>
#include <string>

#include "trainkit/report/result_page.h"

namespace trainkit::detail {

/// A generated text. `title` describes the weights and the sampling: "step 200, temperature 0.8".
struct GeneratedText {
  int64_t step = 0;
  std::string title = {};
  std::string text = {};
};

/// Step of the text at the end of a run: the next text of a resumed run replaces it.
inline constexpr int64_t kLastText = std::numeric_limits<int64_t>::max();

/// Adds a text to the last 100 in `<folder>/samples.json`, and a section with all of them, the latest first, to the
/// page. A text replaces those of its own and of later steps, which a resumed run generates again. Errors: exit code 6.
absl::Status add_generated_text(const std::string& folder, const GeneratedText& text, ResultPage& page);

}  // namespace trainkit::detail
