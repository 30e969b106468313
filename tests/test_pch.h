#pragma once
// Precompiled once for all tests.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>
// torch/torch.h defines CHECK; Catch2's is the one that tests mean.
#undef CHECK
#include <catch2/catch.hpp>
