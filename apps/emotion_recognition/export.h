#pragma once
/// `trainkit-emotion export`: writes a trained model as an ONNX file.

#include "emotion_recognition/options.h"
#include "trainkit/app/app.h"

namespace trainkit::emotion {

/// Returns the command. The file maps "frames" (batch, frames, size, size, 3) uint8, "audio" (batch, samples) float32
/// and "has_audio" (batch) bool, or those of them that the modality uses, to "scores" and "probabilities" (batch,
/// classes). It contains the normalisation of the frames and the mel spectrogram. `options` are those that
/// app.add_flags binds.
AppCommand export_command(App& app, const EmotionOptions& options);

}  // namespace trainkit::emotion
