#pragma once
/// All of the library. Read its headers in this order, which is also the way of the data and the order of the modules:
/// a header uses only those above it.

#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/core/status.h"
