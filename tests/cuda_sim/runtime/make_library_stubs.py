"""Writes cuBLAS and cuFFT as functions that do nothing: numbers.cpp computes the operations that call them. CUPTI's fail,
as without a driver that it knows: that of CUDA 13.2 would call itself without end on the simulated driver.

usage: make_library_stubs.py NM LIBTORCH_CUDA.SO LIBTORCH_CPU.SO > library_stubs.cpp
"""
import re
import subprocess
import sys

symbols = subprocess.run([sys.argv[1], "-D", "--undefined-only", *sys.argv[2:]], capture_output=True, text=True,
                         check=True).stdout.split()
symbols = sorted({s.split("@")[0] for s in symbols if re.match(r"(cublas|cufft|cupti)", s)})
print("""// Written by make_library_stubs.py.
#include <cstddef>
#include <cstdlib>
#include <cstring>
namespace cuda_sim { void count_launch(const char* name); }
extern "C" {""")
for s in symbols:
    if s == "cuptiGetResultString":
        print(f"int {s}(int, const char** text) {{ *text = \"the simulated device has no CUPTI\"; return 0; }}")
    elif s.startswith("cupti"):
        print(f"int {s}(...) {{ return 15; }}")  # CUPTI_ERROR_NOT_INITIALIZED
    elif s == "cublasLtMatmulAlgoGetHeuristic":  # one algorithm that needs no workspace
        print(f"int {s}(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {{ memset(results, 0, 64); *count = 1; return 0; }}")
    elif s == "cublasLtGetVersion":
        print(f"size_t {s}() {{ return 130000; }}")
    elif re.match(r"cublas(Lt)?.*Create", s):
        print(f"int {s}(void** handle, ...) {{ *handle = calloc(1, 4096); return 0; }}")
    elif re.match(r"cublas(Lt)?.*Destroy", s):
        print(f"int {s}(void* handle) {{ free(handle); return 0; }}")
    elif s.startswith(("cublasGetMathMode", "cublasGetPointerMode")):
        print(f"int {s}(void*, int* mode) {{ *mode = 0; return 0; }}")
    elif s.startswith("cublasSet") or s.endswith("SetAttribute"):
        print(f"int {s}(...) {{ return 0; }}")
    elif s == "cufftCreate":
        print(f"int {s}(int* handle) {{ *handle = 1; return 0; }}")
    elif s == "cufftXtMakePlanMany":
        print(f"int {s}(int, int, long long*, long long*, long long, long long, int, long long*, long long, long long, int, long long, size_t* workspace, int) {{ *workspace = 0; return 0; }}")
    elif s.startswith("cufft") and s != "cufftXtExec":
        print(f"int {s}(...) {{ return 0; }}")
    else:
        print(f"int {s}(...) {{ cuda_sim::count_launch(\"{s}\"); return 0; }}")
print("}")
