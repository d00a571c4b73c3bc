// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

namespace anabatic::report {

const char* page_script() {
  return R"js(
const main = document.getElementById("main");
function section(title, id, lead) {
  const part = make("section", {id});
  part.appendChild(make("h2", {}, esc(title)));
  if (lead) part.appendChild(make("p", {class: "soft"}, esc(lead)));
  main.appendChild(part);
  return part;
}
function grid(part, figures, extra) {
  const shown = figures.filter(Boolean);
  if (shown.length === 0) return false;
  const box = make("div", {class: `grid ${extra || ""}`});
  shown.forEach(f => box.appendChild(f));
  part.appendChild(box);
  return true;
}
const say = (part, text) => part.appendChild(make("p", {class: "soft"}, esc(text)));

// rows: [name, a text of each run]; rows that differ between runs are marked.
function table(rows, options) {
  const o = options || {};
  const head = several ? `<thead><tr><th></th>${runs.map((run, i) => `<th style="color:${colour(i)}">${esc(run.name)}</th>`).join("")}</tr></thead>` : "";
  const body = rows.map(([name, ...values]) => {
    const differs = o.marks && several && new Set(values).size > 1;
    return `<tr${differs ? ' class="differs"' : ""}>${o.keys ? `<td class="key">${esc(name)}</td>` : `<th>${esc(name)}</th>`}${values.map(v => `<td>${esc(v)}</td>`).join("")}</tr>`;
  }).join("");
  return make("div", {class: "scroll"}, `<table>${head}<tbody>${body}</tbody></table>`);
}
const row = (name, valueOf) => [name, ...runs.map(run => { const v = valueOf(run); return v === null || v === undefined || v === "" ? "not recorded" : v; })];
const known = rows => rows.filter(r => r.slice(1).some(v => v !== "not recorded"));
const count = v => isNumber(v) ? v.toLocaleString("en") : null;
const time = ms => isNumber(ms) ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : null;
const signed = share => (share < 0 ? "\u2212" : "+") + Math.abs(100 * share).toFixed(1) + " %";
const ratio = (a, b, format) => isNumber(a) && isNumber(b) && b > 0 ? `${format(a)} measured, ${format(b)} predicted (${signed(a / b - 1)})` : isNumber(a) ? format(a) : null;

function summaryRows() {
  const last = run => run.validation.points.at(-1), valid = run => run.validation.points.filter(p => isNumber(p[1]));
  const best = run => valid(run).reduce((a, p) => !a || p[1] < a[1] ? p : a, null);
  return known([
    row("state", run => run.status),
    row("model", run => run.record.model && `${run.record.model.type}, ${short(run.record.model.parameters)} parameters, ${short(run.record.model.active_parameters)} active a token` +
      (run.record.model.experts > 0 ? `; ${run.record.model.layers} layers, ${run.record.model.experts} experts, ${run.record.model.experts_per_token} chosen` : "")),
    row("training loss, last step", run => isNumber(run.totals.loss) ? run.totals.loss.toFixed(4) : null),
    row("validation loss, last", run => last(run) && isNumber(last(run)[1]) ? `${last(run)[1].toFixed(4)} (perplexity ${Math.exp(last(run)[1]).toFixed(2)}) at step ${last(run)[0]}` : null),
    row("validation loss, best", run => best(run) ? `${best(run)[1].toFixed(4)} at step ${best(run)[0]}` : null),
    row("tokens learned from", run => count(run.totals.tokens)),
    row("time in steps", run => run.totals.seconds > 0 ? duration(run.totals.seconds) : null),
    row("step, median", run => run.totals.step_seconds > 0 ? ratio(run.totals.step_seconds, predicted(run), duration) : null),
    row("peak memory", run => ratio(run.totals.peak_bytes, run.totals.planned_bytes, bytes)),
    row("began", run => time(run.record.started_milliseconds)),
    row("directory", run => run.path)]);
}
function warnings() {
  const out = [];
  for (const run of runs) {
    if (run.lines_not_understood > 0) out.push(`${run.name}: ${run.lines_not_understood} lines of its logs are no objects with a step and were left out.`);
    if (run.totals.losses_not_finite > 0) out.push(`${run.name}: the loss of ${run.totals.losses_not_finite} steps was not finite; pictures have gaps there.`);
    if (run.totals.num_steps === 0) out.push(`${run.name}: no step is recorded yet.`);
  }
  return out;
}
function expertSection() {
  const part = section("Experts", "experts", "Load is what an expert got over an even share of its layer's tokens: 1 where all are equally busy.");
  grid(part, [loadChart(), starvedChart()]);
  const mapped = runs.filter(run => run.experts);
  if (mapped.length === 0) return say(part, "The load of single experts is not recorded: no windows.jsonl, or a model without experts.");
  part.appendChild(make("h3", {style: "margin-top:18px"}, "Load of every expert over time"));
  part.appendChild(make("div", {class: "scale"}, `<span class="key"><i></i><b style="left:0">no tokens</b><b style="left:33.3%">even share</b><b style="left:100%">3 times that, or more</b></span>`));
  say(part, "Good: even rows in the middle shade. A red row is an expert that gets no tokens and learns nothing; a blue one does the work of others." +
    (mapped.some(run => run.experts.columns.some(c => c[1] > c[0])) ? " A column is several steps, summed." : ""));
  const layers = [...new Set(mapped.flatMap(run => Object.keys(run.experts.layers)))].sort((a, b) => a - b);
  grid(part, layers.flatMap(layer => mapped.filter(run => run.experts.layers[layer]).map(run => heatMap(run, layer))), mapped.length > 1 && mapped.length <= 4 ? `heat beside-${mapped.length}` : "heat");
}
function environmentRows() {
  const e = run => run.record.environment || {};
  return known([
    row("anabatic", run => e(run).version), row("CPU", run => e(run).cpu), row("threads", run => e(run).threads), row("cores allowed", run => e(run).cores),
    row("instruction sets", run => e(run).instruction_sets && e(run).instruction_sets.join(", ")), row("precision", run => e(run).precision),
    row("peak fp32", run => e(run).fp32_flops_per_second > 0 ? short(e(run).fp32_flops_per_second) + "FLOP/s" : null),
    row("peak bf16", run => e(run).bf16_flops_per_second > 0 ? short(e(run).bf16_flops_per_second) + "FLOP/s" : null),
    row("memory available", run => isNumber(e(run).available_bytes) ? bytes(e(run).available_bytes) : null), row("system", run => e(run).system),
    row("predicted times from", run => run.record.plan && run.record.plan.price_source)]);
}
function configSection() {
  const part = section("Config", "config");
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.record.config || {})))];
  if (keys.length === 0) return say(part, "Not recorded: no run.json.");
  const rows = keys.map(key => row(key, run => (run.record.config || {})[key]));
  const isChosen = key => runs.some(run => run.record.config && run.record.defaults && run.record.config[key] !== run.record.defaults[key]);
  const differs = r => new Set(r.slice(1)).size > 1;
  const interesting = several && rows.some(differs) ? rows.filter(differs) : rows.filter(r => isChosen(r[0]));
  const box = make("div");
  part.appendChild(make("label", {}, `<input type="checkbox" id="all-keys"> all keys`));
  say(part, several && rows.some(differs) ? "Keys that differ between the runs; all others are equal." : "Keys that are not at their defaults.");
  const fill = all => box.replaceChildren(table(all ? rows : interesting, {keys: true, marks: true}));
  part.querySelector("input").addEventListener("change", event => fill(event.target.checked));
  fill(false);
  part.appendChild(box);
}
function planSection() {
  const part = section("Plan", "plan", "What was known before the first step: bytes at the fullest call of a step.");
  const names = [...new Set(runs.flatMap(run => ((run.record.plan || {}).memory || []).map(share => share.name)))];
  const share = (run, name) => { const found = ((run.record.plan || {}).memory || []).find(s => s.name === name); return found ? bytes(found.bytes) : run.record.plan ? "none" : null; };
  if (names.length) part.appendChild(table(known([
    row("predicted peak", run => run.record.plan && bytes(run.record.plan.peak_bytes)), ...names.map(name => row(name, run => share(run, name))),
    row("fullest call of a step", run => run.record.plan && run.record.plan.peak_op), row("predicted step", run => predicted(run) !== null ? duration(predicted(run)) : null)]), {marks: true}));
  for (const run of runs) if (run.plan_text)
    part.appendChild(make("details", {}, `<summary>plan.txt${several ? ` of ${esc(run.name)}` : ""}</summary><pre>${esc(run.plan_text)}</pre>`));
}

function build() {
  main.querySelector("noscript").remove();
  main.appendChild(make("h1", {}, several ? `${runs.length} runs side by side` : esc(runs[0].name)));
  main.appendChild(make("p", {class: "soft"}, `A report of anabatic ${esc(data.version)}, made ${time(data.made_milliseconds)}. It needs no network. Point at a picture for its numbers.`));
  main.appendChild(make("nav", {}, [["learning", "Learning"], ["speed", "Speed and time"], ["memory", "Memory"], ["experts", "Experts"], ["plan", "Plan"], ["config", "Config"], ["environment", "Environment"]]
    .map(([id, name]) => `<a href="#${id}">${name}</a>`).join("")));
  for (const text of warnings()) main.appendChild(make("p", {class: "broken"}, esc(text)));
  section("Summary", "summary").appendChild(table(summaryRows()));
  const learning = section("Learning", "learning");
  if (!grid(learning, [lossChart(), normChart(), rateChart(), balanceChart(), scaleChart()])) say(learning, "No step is recorded yet.");
  const speed = section("Speed and time", "speed");
  if (!grid(speed, [speedChart(), utilizationChart(), segmentChart(), ...runs.map(segmentHistory)])) say(speed, "No step is recorded yet.");
  const memory = section("Memory", "memory");
  if (!grid(memory, [...runs.map(memoryChart), peakChart()])) say(memory, "Not recorded.");
  if (runs.some(run => run.experts || run.series.busiest)) expertSection();
  planSection();
  configSection();
  const rows = environmentRows(), part = section("Environment", "environment");
  if (rows.length) part.appendChild(table(rows, {marks: true})); else say(part, "Not recorded: no run.json.");
}
try {
  build();
  document.documentElement.dataset.charts = numCharts;
} catch (error) {
  document.documentElement.dataset.error = String(error);
  main.appendChild(make("p", {class: "broken"}, esc(`This page could not be drawn: ${error}`)));
  throw error;
}
)js";
}

}  // namespace anabatic::report
