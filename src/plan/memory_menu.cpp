// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_menu.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analysis/saved_form.h"
#include "ir/op_schema.h"
#include "plan/hint_names.h"
#include "plan/kernel_selection.h"
#include "plan/offload.h"
#include "plan/offsets.h"

namespace anabatic::plan {
namespace {

constexpr std::size_t kMostValuesApart = 320;
// Numbers of slices on the menu, and what each must save to be on it.
constexpr std::int64_t kSlices[] = {4, 6, 8, 12, 16, 24, 32}, kLeastSliceBytes = 1 << 16;

}  // namespace

bool MenuItem::is_of(std::string_view hint) const {
  return way != Way::kSlices && std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
           return is_named(key, hint);
         });
}

MemoryMenu::MemoryMenu(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                       const OpEfficiency& efficiency, const CompressionOptions& compression,
                       const OffloadOptions& offload, const analysis::ProductFusions& fusions)
    : graph_(graph),
      plan_(plan),
      device_(device),
      efficiency_(efficiency),
      rebuilder_(graph),
      codes_(graph, rebuilder_, fusions),
      timeline_(graph, plan),
      additions_(graph, plan.places),
      prices_(graph, codes_, device, efficiency) {
  add_items();
  for (const auto form : {spec::SavedForm::kBFloat16, spec::SavedForm::kInt8})
    if (form <= compression.allowed) add_forms(form, compression.min_bytes);
  if (offload.is_allowed) {
    calls_ = predicted_calls(graph, plan, device, efficiency);
    add_forms(spec::SavedForm::kDisk, offload.min_bytes);
  }
  add_slices();
}

void MemoryMenu::add_items() {
  for (const analysis::SavedValue& saved : rebuilder_.saved()) {
    if (saved.is_exchanged) continue;
    const ir::NodeId producer = graph_.value(saved.value).producer;
    const std::int64_t bytes = graph_.value(saved.value).type.num_bytes();
    const bool apart = analysis::are_outputs_apart(graph_.node(producer));
    if (!apart && !items_.empty() &&
        graph_.value(items_.back().values.front()).producer == producer) {
      items_.back().keys.push_back(saved.key);
      items_.back().values.push_back(saved.value);
      items_.back().bytes += bytes;
      continue;
    }
    items_.push_back({{saved.key}, {saved.key}, {saved.value}, bytes});
  }
}

void MemoryMenu::add_forms(spec::SavedForm form, std::int64_t min_bytes) {
  // Values of one kind in neighbouring layers go together where a menu would be long to search.
  const std::size_t group = 1 + rebuilder_.saved().size() / kMostValuesApart;
  std::map<std::string, std::size_t, std::less<>> of_kind;  // the last item
  for (const analysis::SavedValue& saved : rebuilder_.saved()) {
    const TensorType& type = graph_.value(saved.value).type;
    if (type.num_bytes() < min_bytes || !analysis::may_wait_as(graph_, saved.value, form)) continue;
    const std::int64_t bytes = type.num_bytes() - analysis::saved_bytes(type, form);
    std::size_t& last = of_kind[std::string(without_layer(saved.key))];
    if (last > 0 && items_[last].values.size() < group) {
      items_[last].keys.push_back(saved.key);
      items_[last].values.push_back(saved.value);
      items_[last].bytes += bytes;
      continue;
    }
    last = items_.size();
    items_.push_back({{saved.key, way_of(form)}, {saved.key}, {saved.value}, bytes});
  }
}

void MemoryMenu::add_slices() {
  for (const analysis::SliceableKind& kind : analysis::sliceable_kinds(graph_)) {
    std::int64_t last = 1;
    for (const std::int64_t slices : kSlices) {
      const std::int64_t fitting = std::min(slices, kind.most);
      if (fitting > last) add_slices(kind, fitting);
      last = fitting;
    }
  }
}

void MemoryMenu::add_slices(const analysis::SliceableKind& kind, std::int64_t slices) {
  MenuItem item{{kind.key, Way::kSlices, slices}, {kind.key}};
  SliceEffect effect;
  for (const analysis::SliceableCall& call : kind.calls)
    item.bytes = std::max(item.bytes, add_slices(call, slices, effect));
  const bool has_fewer =
      !items_.empty() && items_.back().way == Way::kSlices && items_.back().name == kind.key;
  if (item.bytes < kLeastSliceBytes + (has_fewer ? items_.back().bytes : 0)) return;
  // Fewer slices that take as long have nothing for them.
  if (has_fewer && slice_effects_.at(items_.size() - 1).seconds >= effect.seconds)
    items_.pop_back();
  slice_effects_[items_.size()] = std::move(effect);
  items_.push_back(std::move(item));
}

std::int64_t MemoryMenu::add_slices(const analysis::SliceableCall& call, std::int64_t slices,
                                    SliceEffect& effect) const {
  const std::size_t at = timeline_.position(call.node);
  const PlannedNode& planned = timeline_.planned(at);
  const ir::Node node = analysis::sliced(graph_, call, slices);
  const NodeTypes types = node_types(graph_, node);
  const std::string_view device = planned.kernel->name.substr(0, planned.kernel->name.find(':'));
  const KernelChoice choice = select_kernel({.op = intern(node.op->name),
                                             .attributes = &node.attributes,
                                             .inputs = types.inputs,
                                             .outputs = types.outputs,
                                             .device = &device_,
                                             .may_add = additions_.may_add(node)},
                                            {.only = device}, node_label(node));
  const std::int64_t more =
      align_bytes(choice.workspace_bytes) - align_bytes(planned.workspace_bytes);
  effect.changes.push_back({at, at + 1, more});
  effect.seconds += slicing_seconds(choice.slicing_bytes, device_);
  std::int64_t less = -more;
  const auto bytes_of = [&](ir::ValueId value) {
    const std::int32_t buffer = plan_.buffer_of_value[index(value)];
    return align_bytes(plan_.buffers[static_cast<std::size_t>(buffer)].bytes);
  };
  for (const ir::NodeId pack : call.packs) {
    const std::size_t packed_at = timeline_.position(pack);
    const std::int64_t bytes = bytes_of(graph_.node(pack).outputs[0]);
    effect.changes.push_back({packed_at, at + 1, -bytes});
    const ir::ValueId source = graph_.node(pack).inputs[0];
    if (graph_.value(source).producer != ir::kNoNode)  // a copy, read later than by `pack`
      effect.changes.push_back({packed_at + 1, at + 1, bytes_of(source)});
    effect.seconds -= predicted_seconds(graph_, graph_.node(pack), device_, efficiency_);
    less += bytes;
  }
  return less;
}

bool MemoryMenu::is_effective_slice(std::size_t item, const std::vector<bool>& chosen) const {
  // Those of one kind are neighbours, more slices after fewer.
  for (std::size_t i = item + 1; i < items_.size() && items_[i].name == items_[item].name; ++i)
    if (chosen[i]) return false;
  return true;
}

analysis::Treatments MemoryMenu::treatments(const std::vector<bool>& chosen) const {
  analysis::Treatments result(graph_);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!chosen[i]) continue;
    for (const ir::ValueId value : items_[i].values) {
      if (items_[i].way == Way::kAgain)
        result.is_dropped[index(value)] = true;
      else
        result.form[index(value)] = form_of(items_[i].way);  // later ones take fewer bytes
    }
  }
  return result;
}

void MemoryMenu::change_frame(const analysis::Rebuild& rebuild, ir::ValueId value,
                              const analysis::Treatments& treatments, FrameChanges& changes,
                              std::vector<Offload>& offloads) const {
  const TensorType& type = graph_.value(value).type;
  const std::int64_t bytes = align_bytes(type.num_bytes());
  const std::size_t end = timeline_.forward_end(value), at = timeline_.position(rebuild.before);
  const bool is_form = rebuild.from != spec::SavedForm::kWhole;
  if (treatments.is_kept(value) || (treatments.waits_in_form(value) && !is_form)) {
    changes.add_beside(at, bytes);  // of one that is needed of a node's outputs, what comes with it
  } else if (rebuild.from == spec::SavedForm::kDisk) {
    offloads.push_back({.bytes = bytes,
                        .write_at = static_cast<std::int32_t>(end),
                        .needed_at = static_cast<std::int32_t>(at)});
  } else if (is_form) {
    change_frame_of_form(rebuild, value, treatments, changes);
  } else {
    if (codes_.are_left(value, treatments)) {
      const std::int64_t codes = align_bytes(analysis::saved_bytes(type, spec::SavedForm::kInt8));
      changes.add(end - 1, codes - bytes);
      changes.add(end, -codes);
    } else {
      changes.add(end, -bytes);
    }
    changes.add(at, bytes);
  }
}

void MemoryMenu::pass_packings(const analysis::Rebuild& rebuild, std::vector<ir::ValueId>& packings,
                               FrameChanges& changes) const {
  std::int64_t bytes = 0;
  std::erase_if(packings, [&](ir::ValueId value) {
    if (std::ranges::find(rebuild.inputs, value) == rebuild.inputs.end()) return false;
    bytes += align_bytes(graph_.value(value).type.num_bytes());
    return true;
  });
  if (bytes > 0) changes.add_ahead(timeline_.position(rebuild.before), bytes, 0);
}

void MemoryMenu::change_frame_of_form(const analysis::Rebuild& rebuild, ir::ValueId value,
                                      const analysis::Treatments& treatments,
                                      FrameChanges& changes) const {
  const TensorType& type = graph_.value(value).type;
  const std::int64_t bytes = align_bytes(type.num_bytes()),
                     fewer = align_bytes(analysis::saved_bytes(type, rebuild.from));
  const std::size_t end = timeline_.forward_end(value), at = timeline_.position(rebuild.before);
  if (codes_.are_left(value, treatments))
    changes.add(end - 1, fewer - bytes);  // nothing else of the forward reads it
  else
    changes.add_ahead(end, fewer, fewer - bytes);
  if (codes_.are_read(value, treatments)) {
    changes.add(at, bytes - fewer);  // of the gradient's results, which take no other's bytes
    changes.add_beside(at, fewer);
  } else {
    changes.add_ahead(at, bytes, bytes - fewer);
  }
}

MenuOutcome MemoryMenu::evaluate(const std::vector<bool>& chosen, std::int64_t budget_bytes) const {
  const analysis::Treatments treated = treatments(chosen);
  FrameChanges changes(timeline_);
  double seconds = 0;
  std::vector<Offload> offloads;
  std::vector<ir::ValueId> packings;  // for the product that follows
  for (const analysis::Rebuild& rebuild : rebuilder_.rebuilds(treated)) {
    seconds += prices_.seconds(rebuild, treated);
    if (rebuild.op == "pack") {
      packings.push_back(rebuild.outputs[0]);
      continue;
    }
    for (const ir::ValueId value : rebuild.outputs)
      change_frame(rebuild, value, treated, changes, offloads);
    pass_packings(rebuild, packings, changes);
  }
  for (const auto& [item, effect] : slice_effects_) {
    if (!chosen[item] || !is_effective_slice(item, chosen)) continue;
    seconds += effect.seconds;
    for (const SliceEffect::Change& part : effect.changes) {
      changes.add(part.begin, part.bytes);
      changes.add(part.end, -part.bytes);
    }
  }
  seconds += schedule(offloads, calls_, efficiency_.disk);
  for (const Offload& offload : offloads) {
    changes.add(static_cast<std::size_t>(offload.written_by), -offload.bytes);
    changes.add(static_cast<std::size_t>(offload.read_at), offload.bytes);
  }
  MenuOutcome outcome = changes.outcome(budget_bytes);
  outcome.seconds = seconds;
  return outcome;
}

spec::Decisions MemoryMenu::decisions(const std::vector<bool>& chosen) const {
  spec::Decisions result;
  const analysis::Treatments treated = treatments(chosen);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!chosen[i]) continue;
    const MenuItem& item = items_[i];
    if (item.way == Way::kSlices)
      result.slices[item.name] = std::max(result.slices[item.name], item.slices);
    else if (item.way == Way::kAgain)
      result.recompute.insert(item.keys.begin(), item.keys.end());
    else
      for (std::size_t k = 0; k < item.keys.size(); ++k)
        if (treated.waits_in_form(item.values[k]))
          result.saved_as[item.keys[k]] = treated.form[index(item.values[k])];
  }
  return result;
}

}  // namespace anabatic::plan
