// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

namespace anabatic::report {

const char* charts_script() {
  return R"js(
const label = (run, what) => several ? (what ? `${run.name}, ${what}` : run.name) : what || run.name;
const number = v => isNumber(v) ? v : null;

// One series of every run: faint as it is and smoothed above it, or a line with the range of each
// bucket around it.
function seriesLines(key, what, options) {
  return runs.flatMap((run, i) => {
    const series = run.series[key];
    if (!series) return [];
    const points = pointsOf(series, "mean"), smooth = options && options.plain ? null : smoothed(points);
    const line = {name: label(run, what), colour: colour(i), points, gaps: series.gaps.map(g => points[g][0]),
                  low: series.min && pointsOf(series, "min"), high: series.max && pointsOf(series, "max")};
    if (!smooth) return [line];
    return [{...line, faint: true, smooth: true, hidden: true}, {...line, low: null, high: null, gaps: [], points: smooth}];
  });
}
// What was predicted of each run: a dashed level over its steps.
function levelLines(what, valueOf) {
  return runs.flatMap((run, i) => {
    const value = valueOf(run), t = run.totals;
    if (!isNumber(value) || t.num_steps === 0) return [];
    return [{name: label(run, what), colour: colour(i), dash: true, points: [[t.first_step, value], [t.last_step, value]]}];
  });
}
const bucketWidth = key => Math.max(...runs.map(run => run.series[key] ? run.series[key].width : 1));
function thinned(key) {
  const width = bucketWidth(key);
  const parts = [];
  if (width > 1) parts.push(`Each point is the mean of ${width} steps${several ? " at most" : ""}; the shade reaches from the smallest to the largest of them.`);
  if (runs.some(run => run.series[key] && run.series[key].mean.length >= 100)) parts.push("The strong line is the mean of the 2 % of the run around each point.");
  return parts.length ? " " + parts.join(" ") : "";
}

function lossChart() {
  const validation = runs.flatMap((run, i) => run.validation.points.length === 0 ? [] : [{
    name: label(run, "validation"), colour: several ? colour(i) : "var(--c1)", dash: true, dots: true, points: run.validation.points}]);
  const every = Math.max(...runs.map(run => run.validation.every));
  return lineChart({title: "Loss", unit: "nats a token", lines: [...seriesLines("loss", "training"), ...validation], mayBeLog: true,
    caption: "Good: both fall and flatten out together. Validation that rises while training falls means that the model memorises its data." +
             thinned("loss") + (every > 1 ? ` One validation of ${every} is drawn.` : "")});
}
function rateChart() {
  return lineChart({title: "Learning rate", lines: seriesLines("learning_rate", "", {plain: true}), fromZero: true,
    caption: "Good: a short rise (warm-up), then the fall that the schedule asks for."});
}
function normChart() {
  return lineChart({title: "Gradient norm", unit: "before clipping", lines: seriesLines("grad_norm", ""), mayBeLog: true,
    caption: "Good: it settles after the warm-up. Spikes that come with spikes of the loss ask for a smaller learning rate." + thinned("grad_norm")});
}
function balanceChart() {
  return lineChart({title: "Balance loss", unit: "unweighted", lines: seriesLines("aux_loss", ""),
    caption: "Good: near its least value (1; with balance_loss all_layers the experts a token chooses), where all experts are equally busy." + thinned("aux_loss")});
}
// Runs have one where train.precision or precision.loss_scale asks for it.
function scaleChart() {
  const skipped = runs.reduce((sum, run) => sum + (run.totals.skipped || 0), 0);
  return lineChart({title: "Loss scale", unit: "what the loss is multiplied by", lines: seriesLines("loss_scale", "", {plain: true}), mayBeLog: true,
    caption: "Good: it settles. It doubles after 2000 clean steps and is halved by a step whose gradients overflow, which is skipped. " +
      `${skipped === 0 ? "No step was" : skipped === 1 ? "One step was" : `${skipped} steps were`} skipped.` + thinned("loss_scale")});
}
const tokensAStep = run => number(run.record.tokens_a_step);
const predicted = run => run.record.plan && number(run.record.plan.step_seconds);
function speedChart() {
  const rates = levelLines("predicted", run => predicted(run) > 0 && tokensAStep(run) ? tokensAStep(run) / predicted(run) : null);
  return lineChart({title: "Speed", unit: "tokens a second", fromZero: true, lines: [...seriesLines("tokens_per_second", "measured"), ...rates],
    caption: "Good: level, near the prediction. Dips are other work on the machine, or a disk that the step waits for." + thinned("tokens_per_second")});
}
function utilizationChart() {
  return lineChart({title: "Model FLOPs utilization", unit: "share of the machine's peak", fromZero: true, format: percentTick, lines: seriesLines("mfu", ""),
    caption: "Good: level and high. It counts the FLOPs of the model alone, so recomputing values to save memory lowers it." + thinned("mfu")});
}
function peakChart() {
  const planned = levelLines("planned", run => number(run.totals.planned_bytes));
  return lineChart({title: "Peak memory over the run", unit: "resident bytes", format: bytes, isBytes: true, fromZero: true,
    lines: [...seriesLines("peak_memory_bytes", "measured", {plain: true}), ...planned],
    caption: "Good: the measured peak stays at or below the planned one, and stops growing after the first steps."});
}

// Bytes in use over the calls of a step, stacked by use, with what the process held.
const bands = [["outside the step", "var(--c7)"], ["parameters", "#1f5f9e"], ["packings", "#4f9bd9"], ["optimizer state", "#9cc7ea"], ["masks", "#a569bd"], ["caches", "#5d6d7e"],
  ["gradients", "#b9483c"], ["inputs", "#8a7215"], ["saved activations", "#2f9155"], ["scratch", "#e3bd2f"], ["workspaces", "#e28438"]];
function memoryChart(run) {
  const plan = run.record.plan;
  if (!plan || !plan.timeline || plan.timeline.num_positions === 0) return null;
  const line = plan.timeline, uses = line.uses, count = Object.values(uses)[0].length;
  const known = bands.map(b => b[0]);
  const others = Object.keys(uses).filter(name => !known.includes(name) && name !== "arena slack");
  const stack = [...bands, ...others.map((name, i) => [name, colour(i)])];
  const valueOf = (name, c) => name === "outside the step" ? plan.beside_step_bytes : uses[name] ? uses[name][c] : 0;
  const look = run.memory && run.memory.num_positions === line.num_positions ? run.memory : null;
  const top = Math.max(plan.peak_bytes, ...(look ? look.bytes : [0])) * 1.13;
  const x = makeScale(0, line.num_positions, L, W - R, false), y = makeScale(0, top, H - B, T, false);
  const edge = c => x(c * line.num_positions / count);
  let inside = "", entries = [], below = new Array(count).fill(0);
  for (const [name, fill] of stack) {
    const values = below.map((_, c) => valueOf(name, c)), most = Math.max(...values);
    if (!(most > 0)) continue;
    let up = "", down = "";
    for (let c = 0; c < count; ++c) {
      const b = y(below[c]).toFixed(1), t = y(below[c] + values[c]).toFixed(1), l = edge(c).toFixed(1), r = edge(c + 1).toFixed(1);
      up += `${c ? "L" : "M"}${l} ${t}L${r} ${t}`;
      down = `L${r} ${b}L${l} ${b}` + down;
    }
    inside += `<path d="${up}${down}Z" fill="${fill}"/>`;
    below = below.map((v, c) => v + values[c]);
    entries.push({name: `${name} ${bytes(most)}`, colour: fill, kind: "box"});
  }
  inside = axes(x, y, {format: bytes, isBytes: true, xLabel: "calls of a step, in their order"}) + inside;
  inside += `<path d="M${L} ${y(plan.peak_bytes).toFixed(1)}H${W - R}" stroke="var(--ink)" stroke-dasharray="6 4" fill="none"/>`;
  entries.reverse().push({name: `planned peak ${bytes(plan.peak_bytes)}`, colour: "var(--ink)", kind: "dash"});
  if (look) {
    inside += `<path d="${path(look.positions.map((p, i) => [p, look.bytes[i]]), x, y)}" fill="none" stroke="var(--c5)" stroke-width="2.5"/>`;
    entries.push({name: `measured at step ${look.step}, up to ${bytes(Math.max(...look.bytes))}`, colour: "var(--c5)"});
  }
  inside += actionMarks(line, x);
  const result = figure(`Memory over a step${several ? `: ${run.name}` : ""}`, "bytes", legend(entries) + svg(inside, "memory over a step"),
    "Areas are planned: what is in use at each call; what stays empty below the dashed line is room of the arenas that nothing uses then. " +
    "The red line is measured: bytes that the process held at that call. Arenas are allocated before the first step, so good is a red " +
    "line that is flat and just below the dashed one.");
  memoryPointer(result, line, stack, valueOf, look, x);
  return result;
}
function actionMarks(line, x) {
  let out = "", at = 0;
  for (const action of line.actions) {
    const middle = x(at + action.calls / 2);
    at += action.calls;
    if (x(at) - x(at - action.calls) < 28) continue;
    out += `<path d="M${x(at).toFixed(1)} ${T}V${H - B}" stroke="var(--ink)" opacity="0.35" fill="none"/><text x="${middle.toFixed(1)}" y="${T + 8}" text-anchor="middle" style="fill:var(--ink)">${esc(action.name)}</text>`;
  }
  return out;
}
function memoryPointer(element, line, stack, valueOf, look, x) {
  const picture = element.querySelector("svg"), count = Object.values(line.uses)[0].length;
  picture.addEventListener("mousemove", event => {
    const box = picture.getBoundingClientRect(), px = (event.clientX - box.left) * W / box.width;
    const share = Math.min(Math.max((px - L) / (W - R - L), 0), 0.9999), c = Math.floor(share * count);
    const rows = stack.filter(([name]) => valueOf(name, c) > 0).reverse().map(([name]) => `${name}: ${bytes(valueOf(name, c))}`);
    const near = look && nearest(look.positions.map((p, i) => [p, look.bytes[i]]), share * line.num_positions);
    showTip(event, `call ${Math.floor(share * line.num_positions)}, planned\n${rows.join("\n")}${near ? `\nmeasured: ${bytes(near[1])}` : ""}`);
  });
  picture.addEventListener("mouseleave", hideTip);
}

// Seconds by segment: bars are measured, marks are predicted.
function medianOf(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}
function segmentTimes(run) {
  const measured = {}, planned = (run.record.plan && run.record.plan.segments) || {};
  if (run.times) {
    for (const [name, seconds] of Object.entries(run.times.seconds)) measured[name] = medianOf(seconds);
    measured["outside kernels"] = medianOf(run.times.outside);
  }
  return {measured, planned};
}
function segmentChart() {
  const times = runs.map(segmentTimes);
  const names = [...new Set(times.flatMap(t => [...Object.keys(t.measured), ...Object.keys(t.planned)]))];
  const most = name => Math.max(0, ...times.map(t => t.measured[name] || t.planned[name] || 0));
  names.sort((a, b) => most(b) - most(a));
  const top = Math.max(...names.map(n => Math.max(most(n), ...times.map(t => t.planned[n] || 0))));
  if (!names.length || !(top > 0)) return null;
  const left = 120, bar = several ? 11 : 15, gap = 9, height = names.length * (bar * runs.length + gap) + 46;
  const x = v => left + v / top * (W - left - 92);
  let inside = "", at = 8;
  const format = top < 1 ? v => short(1e3 * v) : short;
  for (const v of ticks(0, top, 6))
    inside += `<path class="rule" d="M${x(v).toFixed(1)} 4V${height - 34}"/><text x="${x(v).toFixed(1)}" y="${height - 20}" text-anchor="middle">${format(v)}</text>`;
  inside += `<text x="${(left + W) / 2}" y="${height - 3}" text-anchor="middle">${top < 1 ? "milliseconds" : "seconds"} of a step</text>`;
  for (const name of names) {
    inside += `<text x="${left - 8}" y="${at + bar * runs.length / 2 + 4}" text-anchor="end">${esc(name)}</text>`;
    times.forEach((t, i) => {
      const got = t.measured[name], want = t.planned[name], y = at + i * bar;
      const total = Object.values(t.measured).filter(isNumber).reduce((a, b) => a + b, 0);
      if (isNumber(got)) inside += `<rect x="${left}" y="${y}" width="${Math.max(x(got) - left, 0.5).toFixed(1)}" height="${bar - 2}" fill="${colour(i)}"/>`;
      if (isNumber(want)) inside += `<path d="M${x(want).toFixed(1)} ${y - 2}v${bar + 2}" stroke="var(--ink)" stroke-width="2.5"/>`;
      const text = isNumber(got) ? `${duration(got)}${total > 0 ? `, ${Math.round(100 * got / total)} %` : ""}` : "";
      inside += `<text x="${(x(Math.max(got || 0, want || 0)) + 6).toFixed(1)}" y="${y + bar - 3}">${text}</text>`;
    });
    at += bar * runs.length + gap;
  }
  const sources = [...new Set(runs.map(run => run.record.plan && run.record.plan.price_source).filter(Boolean))];
  const watched = runs.map(run => run.times ? run.times.steps.length : 0);
  const entries = [...runs.map((run, i) => ({name: label(run, "measured"), colour: colour(i), kind: "box"})), {name: "predicted", colour: "var(--ink)"}];
  return figure("Time of a step by segment", "", legend(entries) + svg(inside, "time by segment", height),
    `Bars are measured: the median of the steps that were looked at (${watched.join(", ")}). Marks are what the plan predicted ` +
    `(${sources.join("; ") || "not recorded"}). Good: experts ` +
    "and the head take most of it, each bar ends near its mark, and little is outside kernels: waits for a disk, batches, bookkeeping.");
}
const segmentNames = [...new Set(runs.flatMap(run => Object.keys(segmentTimes(run).measured)))].sort(
  (a, b) => Math.max(...runs.map(run => segmentTimes(run).measured[b] || 0)) - Math.max(...runs.map(run => segmentTimes(run).measured[a] || 0)));
function segmentHistory(run) {
  if (!run.times || run.times.steps.length < 2) return null;
  const steps = run.times.steps, all = {...run.times.seconds, "outside kernels": run.times.outside};
  const names = segmentNames.slice(0, 8).filter(name => all[name]);
  return lineChart({title: `Time by segment over the run${several ? `: ${run.name}` : ""}`, unit: "seconds of a step", fromZero: true,
    lines: names.map(name => ({name, colour: colour(segmentNames.indexOf(name)), points: steps.map((s, k) => [s, all[name][k]])})), format: duration,
    caption: `Measured at ${steps.length} steps. Good: level lines. What grows or jumps alone is what slows the run down.`});
}

// Load of every expert over time: a row an expert, a column a window of steps.
function loadChart() {
  return lineChart({title: "Busiest and idlest expert", unit: "tokens over an even share", fromZero: true,
    lines: [...seriesLines("busiest", "busiest of any layer"), ...seriesLines("idlest", "idlest of any layer").map(line => ({...line, dash: true}))],
    caption: "Good: both come near 1. An idlest expert at 0 learns nothing." + thinned("busiest")});
}
function starvedChart() {
  return lineChart({title: "Experts below 10 % of an even share", unit: "of all layers", fromZero: true, lines: seriesLines("starved", ""),
    caption: "Good: 0 after the first steps." + thinned("starved")});
}
// "#rrggbb" -> [r, g, b]
const channels = hex => [1, 3, 5].map(i => parseInt(hex.trim().slice(i, i + 2), 16));
function heatColours() {
  const style = getComputedStyle(document.documentElement);
  return ["--heat-low", "--heat-even", "--heat-high"].map(name => channels(style.getPropertyValue(name)));
}
// 0 is the first colour, an even share the second, three times it and more the third.
function heatColour(load, [low, even, high]) {
  const [from, to, share] = load < 100 ? [low, even, load / 100] : [even, high, Math.min(1, (load - 100) / 200)];
  return from.map((v, i) => Math.round(v + share * (to[i] - v)));
}
function paintHeat(canvas, columns, ends) {
  const first = ends[0][0], steps = ends[ends.length - 1][1] - first + 1, experts = columns[0].length;
  const width = Math.min(Math.max(columns.length, steps), 800), context = canvas.getContext("2d"), colours = heatColours();
  canvas.width = width;
  canvas.height = experts;
  const image = context.createImageData(width, experts);
  let column = 0;
  for (let px = 0; px < width; ++px) {
    const step = first + Math.floor((px + 0.5) * steps / width);
    while (column + 1 < ends.length && ends[column][1] < step) ++column;
    for (let e = 0; e < experts; ++e) image.data.set([...heatColour(columns[column][e], colours), 255], 4 * (e * width + px));
  }
  context.putImageData(image, 0, 0);
}
function heatMap(run, layer) {
  const columns = run.experts.layers[layer], ends = run.experts.columns, experts = columns[0].length;
  const first = ends[0][0], last = ends[ends.length - 1][1];
  const height = Math.max(64, Math.min(experts * (experts <= 16 ? 12 : 4), 420));
  const result = figure(`Layer ${layer}${several ? `: ${run.name}` : ""}`, "",
    `<div class="heatbox"><div class="rows"><span>0</span><span>${experts - 1}</span></div><canvas role="img" aria-label="load of the experts of layer ${esc(layer)}" style="height:${height}px"></canvas>` +
    `<div class="ends"><span>step ${first}</span><span>${last}</span></div></div>`, `${experts} experts, one a row`);
  const canvas = result.querySelector("canvas");
  const paint = () => paintHeat(canvas, columns, ends);
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  canvas.addEventListener("mousemove", event => {
    const box = canvas.getBoundingClientRect(), e = Math.min(experts - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * experts)));
    const step = first + Math.floor((event.clientX - box.left) / box.width * (last - first + 1));
    const c = Math.max(0, ends.findIndex(end => end[1] >= step));
    showTip(event, `layer ${layer}, expert ${e}, steps ${ends[c][0]} to ${ends[c][1]}:\n${(columns[c][e] / 100).toFixed(2)} of an even share`);
  });
  canvas.addEventListener("mouseleave", hideTip);
  return result;
}
)js";
}

}  // namespace anabatic::report
