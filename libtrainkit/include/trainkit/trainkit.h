#pragma once
/// The headers that most training programs need, in reading order: the order of the data flow. Include further headers
/// by name: the readers of file formats in trainkit/io, the networks in trainkit/nn (their LibTorch headers take long
/// to compile), memory plans in trainkit/memory, and the application kit in trainkit/app.
// The formatter would sort the headers by name:
// clang-format off

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/core/random.h"
#include "trainkit/core/processors.h"
#include "trainkit/io/mapped_file.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/split.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/nn/functional.h"
#include "trainkit/logging/logger.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/config/config.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/metrics.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"
