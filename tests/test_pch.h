#pragma once
// Precompiled once for all tests.
#include <torch/torch.h>
// torch/torch.h defines CHECK; Catch2's is the one that tests mean.
#undef CHECK
#include <catch2/catch.hpp>
