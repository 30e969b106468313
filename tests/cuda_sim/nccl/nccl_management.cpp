// NCCL's functions that create, query and destroy communicators.
#include <cstring>

#include "nccl_group.h"
#include "sim.h"

namespace cuda_sim::nccl {

namespace {

ncclResult_t start_rank(ncclComm_t* result, int ranks, const ncclUniqueId& id, int rank) {
  if (!result || ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks)
    return refuse(ncclInvalidArgument, "ncclCommInitRank: got rank " + std::to_string(rank) + " of " +
                                           std::to_string(ranks) + " ranks, expected 1 to " +
                                           std::to_string(kMaxRanks) + " ranks");
  std::string error;
  const std::string name(id.internal, strnlen(id.internal, sizeof(id.internal)));
  const std::shared_ptr<Comm> comm = Comm::join(name, ranks, rank, &error);
  if (!comm) return refuse(ncclInvalidUsage, "ncclCommInitRank: " + error);
  *result = comm->handle();
  ThreadGroup& group = thread_group();
  group.starts.push_back({comm, result});
  return group.depth > 0 ? ncclSuccess : launch_group();
}

std::shared_ptr<Comm> find(ncclComm_t handle, const char* function) {
  std::shared_ptr<Comm> comm = Comm::find(handle);
  if (!comm) refuse(ncclInvalidArgument, std::string(function) + ": unknown or destroyed communicator");
  return comm;
}

}  // namespace

}  // namespace cuda_sim::nccl

using cuda_sim::nccl::Comm;
using cuda_sim::nccl::CurrentDevice;
using cuda_sim::nccl::find;
using cuda_sim::nccl::refuse;
using cuda_sim::nccl::start_rank;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const std::string name = cuda_sim::nccl::Clique::new_name();
  name.copy(id->internal, sizeof(id->internal) - 1);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return start_rank(comm, nranks, id, rank);
}

// Waits for the other ranks even if the configuration is non-blocking.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  return start_rank(comm, nranks, id, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int nId, ncclUniqueId* ids,
                                      ncclConfig_t*) {
  if (nId < 1) return refuse(ncclInvalidArgument, "ncclCommInitRankScalable: no unique id");
  return start_rank(comm, nranks, ids[0], rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int* devlist) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < ndev; ++rank) {
    const CurrentDevice device(devlist ? devlist[rank] : rank);
    start_rank(&comms[rank], ndev, id, rank);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* newcomm, ncclConfig_t*) {
  const auto comm = find(handle, "ncclCommSplit");
  if (!comm || !newcomm) return ncclInvalidArgument;
  if (comm->error() != ncclSuccess) return cuda_sim::nccl::note_in_group(comm->error());
  if (color < NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, "ncclCommSplit: negative color");
  auto& group = cuda_sim::nccl::thread_group();
  group.splits.push_back({comm, comm->start_split(color, key), color, newcomm});
  return group.depth > 0 ? ncclSuccess : cuda_sim::nccl::launch_group();
}

ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) { return ncclInvalidUsage; }

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const auto comm = find(handle, "ncclCommFinalize");
  return comm ? comm->finalize() : ncclInvalidArgument;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (!handle) return ncclSuccess;
  const auto comm = find(handle, "ncclCommDestroy");
  if (!comm) return ncclInvalidArgument;
  comm->destroy();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (!handle) return ncclSuccess;
  const auto comm = find(handle, "ncclCommAbort");
  if (!comm) return ncclInvalidArgument;
  comm->abort();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const auto comm = find(handle, "ncclCommGetAsyncError");
  if (!comm || !error) return ncclInvalidArgument;
  *error = comm->error();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const auto comm = find(handle, "ncclCommCount");
  if (!comm) return ncclInvalidArgument;
  *count = comm->ranks();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const auto comm = find(handle, "ncclCommUserRank");
  if (!comm) return ncclInvalidArgument;
  *rank = comm->rank();
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  const auto comm = find(handle, "ncclCommCuDevice");
  if (!comm) return ncclInvalidArgument;
  *device = comm->device();
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  const auto comm = find(handle, "ncclRedOpCreatePreMulSum");
  if (!comm) return ncclInvalidArgument;
  if (!scalar || !cuda_sim::nccl::can_reduce(datatype))
    return refuse(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: no scalar or a data type without reduction");
  cuda_sim::nccl::Factor factor{.datatype = datatype};
  if (residence == ncclScalarDevice) {
    factor.address = scalar;
  } else {
    std::memcpy(factor.value.data(), scalar, cuda_sim::nccl::type_bytes(datatype));
  }
  *op = static_cast<ncclRedOp_t>(comm->add_factor(factor));
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  const auto comm = find(handle, "ncclRedOpDestroy");
  if (!comm) return ncclInvalidArgument;
  return comm->remove_factor(op) ? ncclSuccess
                                 : refuse(ncclInvalidArgument, "ncclRedOpDestroy: unknown reduction operation");
}

ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  return cudaMalloc(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* address) {
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Registered buffers are used like others.
ncclResult_t ncclCommRegister(const ncclComm_t, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclCommWindowRegister(ncclComm_t, void* buffer, size_t, ncclWindow_t* window, int) {
  *window = static_cast<ncclWindow_t>(buffer);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }

// Declared in nccl_device.h, which is for the device compiler.
ncclResult_t ncclDevCommCreate(ncclComm_t, const void*, void*) { return ncclInvalidUsage; }
ncclResult_t ncclDevCommDestroy(ncclComm_t, const void*) { return ncclInvalidUsage; }

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return cuda_sim::nccl::last_error(); }

}  // extern "C"
