#pragma once
/// Parts of a draw.

#include "dice.h"
#include "spec.h"

namespace trainkit::differential {

void draw_optimizer(Dice& dice, Spec& spec);
void draw_schedule(Dice& dice, Spec& spec);
/// Players, rates and freezing, events and sources, in a program that is otherwise settled.
void draw_host(Dice& dice, Spec& spec);
/// Removes optimizers that a program, or one of its players, cannot have.
void settle_optimizer(Spec& spec);
/// Whether a layer has weights.
bool has_weights(const LayerSpec& layer);

}  // namespace trainkit::differential
