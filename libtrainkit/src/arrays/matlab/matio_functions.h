#pragma once
// The functions of libmatio, which is loaded when the first MATLAB file is written. See Note [Late libraries] in
// core/machine/late_library.h.

#include <matio.h>

#include "core/machine/late_library.h"

namespace trainkit::detail {

extern LateLibrary matio;

TRAINKIT_LATE_FUNCTION(matio, Mat_Close);
TRAINKIT_LATE_FUNCTION(matio, Mat_CreateVer);
TRAINKIT_LATE_FUNCTION(matio, Mat_LogInitFunc);
TRAINKIT_LATE_FUNCTION(matio, Mat_VarCreate);
TRAINKIT_LATE_FUNCTION(matio, Mat_VarFree);
TRAINKIT_LATE_FUNCTION(matio, Mat_VarWrite);

}  // namespace trainkit::detail
