#include "trainkit/data/batch_source.h"

namespace trainkit {

BatchSource::~BatchSource() = default;

}  // namespace trainkit
