#pragma once
/// Names of the fields of metrics.jsonl, summary.json and run.json. docs/formats/run.md describes each of them under
/// the heading of its file; `./dev lint` compares the page with this header. A name that several files have is defined
/// once, with the first of them.

namespace trainkit::detail::fields {

// ---- metrics.jsonl: one record per line.

inline constexpr char kStep[] = "step";
inline constexpr char kEpoch[] = "epoch";
inline constexpr char kSplit[] = "split";
inline constexpr char kLoss[] = "loss";
inline constexpr char kGradNorm[] = "grad_norm";
inline constexpr char kLossScale[] = "loss_scale";
inline constexpr char kSamplesPerSecond[] = "samples_per_second";
/// TrainerOptions::weight_unit names it.
inline constexpr char kTokensPerSecond[] = "tokens_per_second";
inline constexpr char kLr[] = "lr";
inline constexpr char kTime[] = "time";
inline constexpr char kEvaluationSeconds[] = "evaluation_seconds";
inline constexpr char kSaveSeconds[] = "save_seconds";
inline constexpr char kSaveFraction[] = "save_fraction";

// Values of the monitor: Monitor::append_values. Some are also in the report that run.json has.
inline constexpr char kUtilisation[] = "utilisation";
inline constexpr char kDataWaitFraction[] = "data_wait_fraction";
inline constexpr char kCopyFraction[] = "copy_fraction";
inline constexpr char kComputeFraction[] = "compute_fraction";
inline constexpr char kReduceFraction[] = "reduce_fraction";
inline constexpr char kQueueDepth[] = "queue_depth";
inline constexpr char kHostMemoryBytes[] = "host_memory_bytes";
inline constexpr char kGpuMemoryBytes[] = "gpu_memory_bytes";
inline constexpr char kGpuUtilisation[] = "gpu_utilisation";
inline constexpr char kProcessorWaitFraction[] = "processor_wait_fraction";
inline constexpr char kOtherProcessesFraction[] = "other_processes_fraction";
inline constexpr char kStolenFraction[] = "stolen_fraction";

// ---- summary.json: the outcome of a run.

inline constexpr char kExitReason[] = "exit_reason";
inline constexpr char kExitCode[] = "exit_code";
inline constexpr char kSteps[] = "steps";
inline constexpr char kEpochs[] = "epochs";
inline constexpr char kWallSeconds[] = "wall_seconds";
inline constexpr char kEffectiveFraction[] = "effective_fraction";
inline constexpr char kFinal[] = "final";
inline constexpr char kBest[] = "best";
inline constexpr char kBestStep[] = "best_step";
inline constexpr char kPredictedMemoryBytes[] = "predicted_memory_bytes";
inline constexpr char kRealMemoryBytes[] = "real_memory_bytes";
inline constexpr char kPredictedReservedBytes[] = "predicted_reserved_bytes";
inline constexpr char kRealReservedBytes[] = "real_reserved_bytes";
inline constexpr char kBadSamples[] = "bad_samples";
inline constexpr char kWarnings[] = "warnings";
inline constexpr char kVersions[] = "versions";

// Only of several runs (--repeats, --folds).
inline constexpr char kRepeats[] = "repeats";
inline constexpr char kRuns[] = "runs";
/// Of an entry of `runs`; of a session in run.json: the working directory.
inline constexpr char kFolder[] = "folder";
inline constexpr char kSeed[] = "seed";

// ---- run.json: the sessions of a run.

inline constexpr char kProgram[] = "program";
inline constexpr char kFiles[] = "files";
inline constexpr char kId[] = "id";
inline constexpr char kSessions[] = "sessions";

// Of a session.
inline constexpr char kStarted[] = "started";
inline constexpr char kPid[] = "pid";
inline constexpr char kFirstStep[] = "first_step";
inline constexpr char kCommand[] = "command";
inline constexpr char kHost[] = "host";
inline constexpr char kSettings[] = "settings";
inline constexpr char kCommit[] = "commit";
inline constexpr char kChanges[] = "changes";
inline constexpr char kFacts[] = "facts";
inline constexpr char kMonitor[] = "monitor";
inline constexpr char kEnded[] = "ended";
inline constexpr char kLastStep[] = "last_step";
inline constexpr char kTrainingSeconds[] = "training_seconds";
inline constexpr char kPauseSeconds[] = "pause_seconds";
inline constexpr char kMemory[] = "memory";

// Of `host`.
inline constexpr char kName[] = "name";
inline constexpr char kProcessor[] = "processor";
inline constexpr char kProcessors[] = "processors";
inline constexpr char kMemoryBytes[] = "memory_bytes";
inline constexpr char kSystem[] = "system";

// Of `monitor`.
inline constexpr char kMetric[] = "metric";
inline constexpr char kHigherIsBetter[] = "higher_is_better";

// Of `utilisation`.
inline constexpr char kSeconds[] = "seconds";
inline constexpr char kOfGpus[] = "of_gpus";
inline constexpr char kWait[] = "wait";
inline constexpr char kCopy[] = "copy";
inline constexpr char kReduce[] = "reduce";
inline constexpr char kCompute[] = "compute";
inline constexpr char kUpdate[] = "update";
inline constexpr char kRingSize[] = "ring_size";
inline constexpr char kAdvice[] = "advice";

// Of `memory`.
inline constexpr char kPredictedBytes[] = "predicted_bytes";
inline constexpr char kRealBytes[] = "real_bytes";

}  // namespace trainkit::detail::fields
