/// Configures jemalloc, which reads this variable when the program starts: keep freed memory for the next step, also
/// large blocks, and use huge pages. The environment variable MALLOC_CONF overrides it. Source: jemalloc(3), "TUNING".
/// PyTorch's performance tuning guide recommends the same for CPUs.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,thp:always";
}
