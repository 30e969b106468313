#include "trainkit/rank_output.h"

namespace trainkit::tool {

void RankOutput::feed(std::string_view bytes, double now) {
  for (const char c : bytes) {
    if (c == '\n') {
      if (!text_.empty() || !cut_) line(text_);
      text_.clear();
      cut_ = false;
      returned_ = false;
    } else if (c == '\r') {
      returned_ = true;
    } else {
      if (returned_) redraw(now);
      text_ += c;
      if (text_.size() < kMaxLine) continue;
      line(text_);
      text_.clear();
      cut_ = true;
    }
  }
}

void RankOutput::redraw(double now) {
  // Called at the first byte after '\r', when text_ is a version of the line that is about to be replaced.
  if (!text_.empty() && now - last_redraw_ >= kRedrawSeconds) {
    line(text_);
    last_redraw_ = now;
  }
  text_.clear();
  returned_ = false;
}

void RankOutput::end() {
  if (!text_.empty()) line(text_);
  text_.clear();
  returned_ = false;
}

}  // namespace trainkit::tool
