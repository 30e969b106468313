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
// torch/torch.h defines CHECK; tests use Catch2's.
#undef CHECK
#include <catch2/catch.hpp>
