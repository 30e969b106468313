// std::condition_variable::wait of GCC 12's library has a version of its own (GLIBCXX_3.4.30), which Ubuntu 22.04's and
// Red Hat 9's libraries may lack. With this definition, which is that of GCC 12, the programs need none.
#include <condition_variable>

#ifdef __GLIBCXX__
void std::condition_variable::wait(std::unique_lock<std::mutex>& lock) { _M_cond.wait(*lock.mutex()); }
#endif
