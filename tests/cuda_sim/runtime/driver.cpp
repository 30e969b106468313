// libcuda.so.1 of the simulated device: LibTorch opens it and asks for little.
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the simulated driver", 0; }
int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(1), 0; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) { return *flags = 0, *is_active = 1, 0; }
}
