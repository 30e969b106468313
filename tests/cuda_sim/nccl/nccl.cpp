// The functions of NCCL that LibTorch calls: groups and collective calls. nccl_management.cpp has the others.
#include "nccl_group.h"
#include "sim.h"

namespace cuda_sim::nccl {

namespace {

struct Arguments {
  Op op;
  const void* send;
  void* recv;
  size_t count;
  ncclDataType_t datatype;
  int redop = -1;
  int root = -1;
};

std::string check_buffer(const Comm& comm, const char* which, const void* buffer, size_t bytes) {
  const int device = device_of(buffer);
  if (device < 0) return std::string("the ") + which + " buffer is no device memory";
  if (device != comm.device())
    return std::string("the ") + which + " buffer is on CUDA device " + std::to_string(device) +
           ", the communicator on CUDA device " + std::to_string(comm.device());
  if (const size_t left = bytes_left(buffer); left < bytes)
    return std::string("the ") + which + " buffer has " + std::to_string(left) + " bytes, expected at least " +
           std::to_string(bytes);
  return "";
}

std::string check_buffers(const Comm& comm, const Work& work) {
  const Buffers need = buffers_of(work.call, comm.rank(), comm.ranks());
  std::string text;
  if (need.sends) text = check_buffer(comm, "send", work.send, need.send_bytes);
  if (need.receives && text.empty()) text = check_buffer(comm, "receive", work.recv, need.recv_bytes);
  if (!text.empty() || !need.sends || !need.receives) return text;
  const char* send = static_cast<const char*>(work.send);
  const char* recv = static_cast<const char*>(work.recv);
  const bool overlap = send < recv + need.recv_bytes && recv < send + need.send_bytes;
  return overlap && !is_in_place(work.call, comm.rank(), send, recv)
             ? "the send and receive buffers overlap, but not as a call in place"
             : "";
}

std::string check_stream(const Comm& comm, cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return "";
  const int device = device_of_stream(stream);
  return device == comm.device() ? ""
                                 : "the stream is of CUDA device " + std::to_string(device) +
                                       ", the communicator of CUDA device " + std::to_string(comm.device());
}

/// Sets the operation of the work.
std::string check_redop(Comm& comm, Work* work) {
  const int redop = work->call.redop;
  if (redop == -1) return "";
  if (!can_reduce(work->call.datatype)) return "the simulation does not reduce 8-bit floating point";
  if (redop >= 0 && redop < ncclNumOps) return "";
  work->factor = comm.factor(redop);
  if (!work->factor) return "unknown or destroyed reduction operation " + std::to_string(redop);
  if (work->factor->datatype != work->call.datatype) return "the reduction operation has another data type";
  work->call.redop = kPreMulSum;
  return "";
}

ncclResult_t call(const Arguments& arguments, ncclComm_t handle, cudaStream_t stream) {
  const std::string name = std::string("nccl") + name_of(arguments.op);
  const std::shared_ptr<Comm> comm = Comm::find(handle);
  if (!comm) return refuse(ncclInvalidArgument, name + ": unknown or destroyed communicator");
  if (comm->error() != ncclSuccess) return note_in_group(comm->error());
  const std::string prefix = "rank " + std::to_string(comm->rank()) + ", " + name + ": ";
  if (comm->is_finalized()) return refuse(ncclInvalidUsage, prefix + "called after ncclCommFinalize");
  if (type_bytes(arguments.datatype) == 0) return refuse(ncclInvalidArgument, prefix + "invalid data type");
  const bool has_root = arguments.op == Op::kReduce || arguments.op == Op::kBroadcast || is_message(arguments.op);
  if (has_root && (arguments.root < 0 || arguments.root >= comm->ranks()))
    return refuse(ncclInvalidArgument, prefix + "invalid rank " + std::to_string(arguments.root));

  Work work{.call = {arguments.op, arguments.datatype, arguments.redop, arguments.root, arguments.count},
            .send = arguments.send,
            .recv = arguments.recv,
            .factor = {}};
  std::string text = check_redop(*comm, &work);
  if (text.empty() && arguments.count == 0 && !is_message(arguments.op)) return ncclSuccess;  // as in NCCL
  if (text.empty() && arguments.count > 0) text = check_buffers(*comm, work);
  if (text.empty()) text = check_stream(*comm, stream);
  if (!text.empty()) return refuse(ncclInvalidArgument, prefix + text);
  ThreadGroup& group = thread_group();
  group.issues.push_back({comm, stream, std::move(work)});
  return group.depth > 0 ? ncclSuccess : launch_group();
}

}  // namespace

}  // namespace cuda_sim::nccl

using cuda_sim::nccl::call;
using cuda_sim::nccl::Op;

extern "C" {

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Op::kAllReduce, sendbuff, recvbuff, count, datatype, op}, comm, stream);
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return call({Op::kReduce, sendbuff, recvbuff, count, datatype, op, root}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Op::kBroadcast, sendbuff, recvbuff, count, datatype, -1, root}, comm, stream);
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return call({Op::kBroadcast, buff, buff, count, datatype, -1, root}, comm, stream);
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Op::kAllGather, sendbuff, recvbuff, sendcount, datatype}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call({Op::kReduceScatter, sendbuff, recvbuff, recvcount, datatype, op}, comm, stream);
}

ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream) {
  return call({Op::kAlltoAll, sendbuff, recvbuff, count, datatype}, comm, stream);
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call({Op::kSend, sendbuff, nullptr, count, datatype, -1, peer}, comm, stream);
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call({Op::kRecv, nullptr, recvbuff, count, datatype, -1, peer}, comm, stream);
}

}  // extern "C"
