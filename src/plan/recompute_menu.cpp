// SPDX-License-Identifier: Apache-2.0
#include "plan/recompute_menu.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analysis/saved_form.h"
#include "ops/table.h"
#include "plan/hints.h"
#include "plan/kernel_selection.h"
#include "plan/offload.h"
#include "plan/offsets.h"

namespace anabatic::plan {
namespace {

constexpr std::size_t kMostValuesApart = 320;
// Numbers of slices on the menu, and what each must save to be on it.
constexpr std::int64_t kSlices[] = {4, 8, 16, 32}, kLeastSliceBytes = 1 << 16;

}  // namespace

bool MenuItem::is_of(std::string_view hint) const {
  return way != Way::kSlices && std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
           return is_named(key, hint);
         });
}

RecomputeMenu::RecomputeMenu(const ir::Graph& graph, const Plan& plan,
                             const spec::DeviceSpec& device, const OpEfficiency& efficiency,
                             const CompressionOptions& compression, const OffloadOptions& offload)
    : graph_(graph),
      plan_(plan),
      device_(device),
      efficiency_(efficiency),
      rebuilder_(graph),
      position_(graph.nodes.size(), -1),
      forward_end_(graph.values.size(), 0),
      beside_(graph.values.size(), ir::kNoValue),
      from_codes_seconds_(graph.values.size(), 0),
      first_gradient_(analysis::first_swiglu_gradient(graph)) {
  std::int32_t position = 0;
  std::vector<std::int64_t> change, between;
  for (const auto& [action, order] : plan.orders) {
    for (const PlannedNode& planned : order) {
      position_[index(planned.node)] = position++;
      planned_.push_back(&planned);
      change.push_back(0);
    }
  }
  change.push_back(0);
  between.assign(change.size(), 0);
  const auto add = [&](const Lifetime& lifetime, std::int64_t bytes) {
    change[static_cast<std::size_t>(lifetime.begin)] += align_bytes(bytes);
    change[static_cast<std::size_t>(lifetime.end)] -= align_bytes(bytes);
    if (lifetime.end - lifetime.begin < 2) return;
    between[static_cast<std::size_t>(lifetime.begin) + 1] += align_bytes(bytes);
    between[static_cast<std::size_t>(lifetime.end)] -= align_bytes(bytes);
  };
  std::vector<bool> is_window(plan.buffers.size(), false);
  // A window needs its bytes for its use; ahead of it, it takes what others leave.
  for (const SwapWindow& window : plan.windows) {
    is_window[static_cast<std::size_t>(window.buffer)] = true;
    add({window.use, window.end}, window.bytes);
  }
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].arena == spec::Arena::kFrame && !is_window[i])
      add(plan.buffers[i].lifetime, plan.buffers[i].bytes);
  std::int64_t live = 0;
  for (const std::int64_t delta : change) live_.push_back(live += delta);
  live = 0;
  for (const std::int64_t delta : between) ahead_.push_back(live += delta);
  for (const auto& [action, order] : plan.orders)
    for (const PlannedNode& planned : order) {
      const std::int32_t at = position_[index(planned.node)];
      live_[static_cast<std::size_t>(at)] += align_bytes(planned.workspace_bytes);
      const ir::Node& node = graph.node(planned.node);
      if (action != spec::Action::kForward) continue;
      for (const auto* list : {&node.inputs, &node.outputs})
        for (ir::ValueId value : *list)
          forward_end_[index(value)] = std::max(forward_end_[index(value)], at + 1);
    }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (!node.op->name.ends_with("_with_products")) continue;
    beside_[index(node.outputs[1])] = node.outputs[2];
    beside_[index(node.outputs[2])] = node.outputs[1];
  }
  add_items();
  for (const auto form : {spec::SavedForm::kBFloat16, spec::SavedForm::kInt8})
    if (form <= compression.allowed) add_forms(form, compression.min_bytes);
  if (offload.is_allowed) {
    calls_ = predicted_calls(graph, plan, device, efficiency);
    add_forms(spec::SavedForm::kDisk, offload.min_bytes);
  }
  add_slices();
}

void RecomputeMenu::add_items() {
  for (const analysis::SavedValue& saved : rebuilder_.saved()) {
    const ir::NodeId producer = graph_.value(saved.value).producer;
    const std::int64_t bytes = graph_.value(saved.value).type.num_bytes();
    const bool apart = graph_.node(producer).op->name.ends_with("_with_products") ||
                       graph_.node(producer).op->name == "add_rms_norm";
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

void RecomputeMenu::add_forms(spec::SavedForm form, std::int64_t min_bytes) {
  // Values of one kind in neighbouring layers go together where a menu would be long to search.
  const std::size_t group = 1 + rebuilder_.saved().size() / kMostValuesApart;
  std::map<std::string, std::size_t, std::less<>> of_kind;  // the last item
  std::vector<double>& seconds = form_seconds_[form];
  seconds.assign(graph_.values.size(), 0);
  for (const analysis::SavedValue& saved : rebuilder_.saved()) {
    const TensorType& type = graph_.value(saved.value).type;
    if (type.num_bytes() < min_bytes || !analysis::may_wait_as(graph_, saved.value, form)) continue;
    if (form == spec::SavedForm::kDisk) {
      seconds[index(saved.value)] = offload_seconds(type.num_bytes(), device_);
    } else {
      const auto [to, from] = conversion_price(type, form);
      seconds[index(saved.value)] = to + from;
      if (form == spec::SavedForm::kInt8) from_codes_seconds_[index(saved.value)] = from;
    }
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

void RecomputeMenu::add_slices() {
  for (const analysis::SliceableKind& kind : analysis::sliceable_kinds(graph_)) {
    std::int64_t last = 1;
    for (const std::int64_t slices : kSlices) {
      const std::int64_t fitting = std::min(slices, kind.most);
      if (fitting > last) add_slices(kind, fitting);
      last = fitting;
    }
  }
}

void RecomputeMenu::add_slices(const analysis::SliceableKind& kind, std::int64_t slices) {
  MenuItem item{{kind.key, Way::kSlices, slices}, {kind.key}};
  SliceEffect effect;
  for (const analysis::SliceableCall& call : kind.calls) {
    const std::int32_t at = position_[index(call.node)];
    const PlannedNode& planned = *planned_[static_cast<std::size_t>(at)];
    const ir::Node node = analysis::sliced(graph_, call, slices);
    const NodeTypes types = node_types(graph_, node);
    const std::string_view device = planned.kernel->name.substr(0, planned.kernel->name.find(':'));
    const KernelChoice choice = select_kernel({.op = intern(node.op->name),
                                               .attributes = &node.attributes,
                                               .inputs = types.inputs,
                                               .outputs = types.outputs,
                                               .device = &device_},
                                              device, node_label(node));
    const std::int64_t more =
        align_bytes(choice.workspace_bytes) - align_bytes(planned.workspace_bytes);
    effect.changes.push_back({at, at + 1, more});
    effect.seconds += slicing_seconds(choice.slicing_bytes, device_, efficiency_);
    std::int64_t less = -more;
    const auto bytes_of = [&](ir::ValueId value) {
      const std::int32_t buffer = plan_.buffer_of_value[index(value)];
      return align_bytes(plan_.buffers[static_cast<std::size_t>(buffer)].bytes);
    };
    for (const ir::NodeId pack : call.packs) {
      const std::int32_t packed_at = position_[index(pack)];
      const std::int64_t bytes = bytes_of(graph_.node(pack).outputs[0]);
      effect.changes.push_back({packed_at, at + 1, -bytes});
      const ir::ValueId source = graph_.node(pack).inputs[0];
      if (graph_.value(source).producer != ir::kNoNode)  // a copy, read later than by `pack`
        effect.changes.push_back({packed_at + 1, at + 1, bytes_of(source)});
      effect.seconds -= predicted_seconds(graph_, graph_.node(pack), device_, efficiency_);
      less += bytes;
    }
    item.bytes = std::max(item.bytes, less);
  }
  const bool has_fewer =
      !items_.empty() && items_.back().way == Way::kSlices && items_.back().name == kind.key;
  if (item.bytes < kLeastSliceBytes + (has_fewer ? items_.back().bytes : 0)) return;
  // Fewer slices that take as long have nothing for them.
  if (has_fewer && slice_effects_.at(items_.size() - 1).seconds >= effect.seconds)
    items_.pop_back();
  slice_effects_[items_.size()] = std::move(effect);
  items_.push_back(std::move(item));
}

bool RecomputeMenu::is_effective_slice(std::size_t item, const std::vector<bool>& chosen) const {
  // Those of one kind are neighbours, more slices behind fewer.
  for (std::size_t i = item + 1; i < items_.size() && items_[i].name == items_[item].name; ++i)
    if (chosen[i]) return false;
  return true;
}

RecomputeMenu::ConversionPrice RecomputeMenu::conversion_price(const TensorType& type,
                                                               spec::SavedForm format) const {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId x = builder.batch_input("x", type);
  const analysis::Conversion to = analysis::conversion_to(format),
                             back = analysis::conversion_from(format, type.dtype);
  builder.add(back.op, builder.add(to.op, {x}, to.attributes), back.attributes);
  return {predicted_seconds(graph, graph.nodes[0], device_, efficiency_),
          predicted_seconds(graph, graph.nodes[1], device_, efficiency_)};
}

bool RecomputeMenu::waits_in_codes(ir::ValueId value, const analysis::Treatments& treated) const {
  return treated.waits_in_form(value) && treated.form[index(value)] == spec::SavedForm::kInt8;
}

bool RecomputeMenu::is_left_in_codes(ir::ValueId value, const analysis::Treatments& treated) const {
  const ir::ValueId other = beside_[index(value)];
  if (other == ir::kNoValue) return false;
  const auto goes = [&](ir::ValueId v) {
    return treated.is_dropped[index(v)] || waits_in_codes(v, treated);
  };
  return goes(value) && goes(other) &&
         (waits_in_codes(value, treated) || waits_in_codes(other, treated));
}

bool RecomputeMenu::are_codes_read(ir::ValueId value, const analysis::Treatments& treated) const {
  const ir::ValueId other = beside_[index(value)];
  if (other == ir::kNoValue) return false;
  for (const ir::ValueId one : {value, other}) {
    const std::vector<ir::NodeId>& readers = rebuilder_.backward_readers(one);
    if (!waits_in_codes(one, treated) || readers.size() != 1 || readers[0] == first_gradient_ ||
        !analysis::is_swiglu_gradient(graph_.node(readers[0])))
      return false;
  }
  const ir::Node& product = graph_.node(graph_.value(value).producer);
  return !treated.is_dropped[index(product.outputs[0])] ||
         comes_with_gradient(product.outputs[0], product.outputs[1]);
}

bool RecomputeMenu::comes_with_gradient(ir::ValueId activation, ir::ValueId gate) const {
  const std::vector<ir::NodeId>& wanted_by = rebuilder_.backward_readers(activation);
  if (std::any_of(wanted_by.begin(), wanted_by.end(), [&](ir::NodeId reader) {
        return graph_.node(reader).tag.phase != ir::Phase::kBackwardWeight;
      }))
    return false;
  const std::vector<ir::NodeId>& readers = rebuilder_.backward_readers(gate);
  return std::any_of(readers.begin(), readers.end(), [&](ir::NodeId reader) {
    return analysis::is_swiglu_gradient(graph_.node(reader));
  });
}

double RecomputeMenu::price(const analysis::Rebuild& rebuild,
                            const analysis::Treatments& treated) const {
  if (rebuild.from != spec::SavedForm::kWhole) {
    const ir::ValueId value = rebuild.outputs[0];
    if (!is_left_in_codes(value, treated)) return form_seconds_.at(rebuild.from)[index(value)];
    const TensorType& type = graph_.value(value).type;
    const double codes = codes_behind_product_seconds(type, device_, efficiency_);
    if (are_codes_read(value, treated))
      return codes + codes_in_gradient_seconds(type, device_, efficiency_);
    // Of a value beside one that is made again the product leaves codes too, for nobody.
    const bool is_alone = treated.is_dropped[index(beside_[index(value)])];
    return (is_alone ? 2 : 1) * codes + from_codes_seconds_[index(value)];
  }
  if (rebuild.op == "swiglu" && comes_with_gradient(rebuild.outputs[0], rebuild.inputs[0]))
    return activation_beside_gradient_seconds(graph_.value(rebuild.outputs[0]).type, device_);
  const auto [found, is_new] = rebuild_seconds_.try_emplace({rebuild.op, rebuild.outputs[0]}, 0.0);
  if (!is_new) return found->second;
  const ir::Node node{.op = ops::find_op(rebuild.op),
                      .attributes = rebuild.attributes,
                      .inputs = rebuild.inputs,
                      .outputs = rebuild.outputs,
                      .tag = {.phase = ir::Phase::kRecompute}};
  return found->second = predicted_seconds(graph_, node, device_, efficiency_);
}

analysis::Treatments RecomputeMenu::treatments(const std::vector<bool>& chosen) const {
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

MenuOutcome RecomputeMenu::evaluate(const std::vector<bool>& chosen,
                                    std::int64_t budget_bytes) const {
  const analysis::Treatments treated = treatments(chosen);
  MenuOutcome outcome;
  // By position: what a choice adds from there on, beside it alone, and at most while values are
  // compressed or come back ahead of it.
  std::vector<std::int64_t> change(live_.size() + 1, 0), beside(live_.size(), 0),
      passing(live_.size(), 0);
  const auto pass = [&](std::size_t at, std::int64_t whole_or_less, std::int64_t delta) {
    passing[at] = std::max(passing[at], change[at] + whole_or_less);
    change[at] += delta;
  };
  std::vector<Offload> offloads;
  for (const analysis::Rebuild& rebuild : rebuilder_.rebuilds(treated)) {
    outcome.seconds += price(rebuild, treated);
    const auto at = static_cast<std::size_t>(position_[index(rebuild.before)]);
    for (ir::ValueId value : rebuild.outputs) {
      const TensorType& type = graph_.value(value).type;
      const std::int64_t bytes = align_bytes(type.num_bytes());
      const auto end = static_cast<std::size_t>(forward_end_[index(value)]);
      const bool is_form = rebuild.from != spec::SavedForm::kWhole;
      if (treated.is_kept(value) || (treated.waits_in_form(value) && !is_form)) {
        beside[at] += bytes;  // of one that is needed of a node's outputs, what comes with it
      } else if (rebuild.from == spec::SavedForm::kDisk) {
        offloads.push_back({.bytes = bytes,
                            .write_at = static_cast<std::int32_t>(end),
                            .needed_at = static_cast<std::int32_t>(at)});
      } else if (rebuild.from == spec::SavedForm::kWhole) {
        if (is_left_in_codes(value, treated)) {
          const std::int64_t less =
              align_bytes(analysis::saved_bytes(type, spec::SavedForm::kInt8));
          change[end - 1] += less - bytes;
          change[end] -= less;
        } else {
          change[end] -= bytes;
        }
        change[at] += bytes;
      } else {
        const std::int64_t less = align_bytes(analysis::saved_bytes(type, rebuild.from));
        if (is_left_in_codes(value, treated)) {
          change[end - 1] += less - bytes;  // nothing else of the forward reads it
        } else {
          pass(end, less, less - bytes);
        }
        if (are_codes_read(value, treated)) {
          change[at] += bytes - less;  // of the gradient's results, which take no other's bytes
          beside[at] += less;
        } else {
          pass(at, bytes, bytes - less);
        }
      }
    }
  }
  for (const auto& [item, effect] : slice_effects_) {
    if (!chosen[item] || !is_effective_slice(item, chosen)) continue;
    outcome.seconds += effect.seconds;
    for (const SliceEffect::Change& part : effect.changes) {
      change[static_cast<std::size_t>(part.begin)] += part.bytes;
      change[static_cast<std::size_t>(part.end)] -= part.bytes;
    }
  }
  outcome.seconds += schedule(offloads, calls_, efficiency_.disk);
  for (const Offload& offload : offloads) {
    change[static_cast<std::size_t>(offload.written_by)] -= offload.bytes;
    change[static_cast<std::size_t>(offload.read_at)] += offload.bytes;
  }
  std::int64_t saved = 0;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    const std::int64_t before = passing[i] > 0 ? ahead_[i] + saved + passing[i] : 0;
    saved += change[i];
    const std::int64_t live = std::max(before, live_[i] + saved + beside[i]);
    outcome.peak_bytes = std::max(outcome.peak_bytes, live);
    outcome.excess += static_cast<double>(std::max<std::int64_t>(live - budget_bytes, 0));
  }
  return outcome;
}

spec::Decisions RecomputeMenu::decisions(const std::vector<bool>& chosen) const {
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
