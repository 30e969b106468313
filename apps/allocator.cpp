/// What jemalloc reads when the program starts: freed memory is kept for the next step, however large the block, on
/// huge pages. The environment variable MALLOC_CONF comes after it and wins. Source: jemalloc(3), "TUNING"; PyTorch's
/// performance tuning guide advises the same on CPUs.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,thp:always";
}
