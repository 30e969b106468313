/// Options that jemalloc reads at program start. Freed memory, including large blocks, is kept for the next step, on
/// huge pages. The environment variable MALLOC_CONF overrides them. Source: jemalloc(3), "TUNING"; PyTorch's
/// performance tuning guide recommends the same on CPUs.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,thp:always";
}
