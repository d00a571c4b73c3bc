// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

namespace anabatic::report {

// Pictures are SVG text that the browser parses: it needs no namespace, so the page names no
// address at all.
const char* draw_script() {
  return R"js(
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const W = 640, H = 250, L = 62, R = 12, T = 10, B = 34;
let numCharts = 0;

const escapes = {"<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;"};
const esc = text => String(text).replace(/[<>&"]/g, c => escapes[c]);
const colour = i => `var(--c${i % 8})`;
const several = runs.length > 1;
const isNumber = v => typeof v === "number" && isFinite(v);
function make(tag, attributes, html) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (html !== undefined) element.innerHTML = html;
  return element;
}

// 1234567 -> "1.23 M"; small numbers keep three digits.
function short(v) {
  if (!isNumber(v)) return "not known";
  const a = Math.abs(v);
  for (const [size, name] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]])
    if (a >= size) return +(v / (name === " k" ? 1e3 : size)).toPrecision(3) + name;
  if (a !== 0 && a < 1e-5) return v.toExponential(2).replace("e-", "e\u2212");
  return String(+v.toPrecision(4));
}
function bytes(v) {
  if (!isNumber(v)) return "not known";
  for (const [size, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(v) >= size) return (v / size).toFixed(v / size < 10 ? 2 : 1) + " " + name;
  return v + " bytes";
}
const bytesTick = v => v === 0 ? "0" : bytes(v).replace(/\.0+ /, " ");
function duration(s) {
  if (!isNumber(s)) return "not known";
  if (s === 0) return "0";
  if (s < 1) return +(1e3 * s).toPrecision(3) + " ms";
  if (s < 120) return +s.toPrecision(3) + " s";
  if (s < 7200) return (s / 60).toFixed(1) + " min";
  return (s / 3600).toFixed(1) + " h";
}
const percent = v => isNumber(v) ? (100 * v).toFixed(1) + " %" : "not known";
const percentTick = v => +(100 * v).toPrecision(4) + " %";

// About `count` round numbers from lo to hi; base 2 for bytes.
function ticks(lo, hi, count, unit) {
  const scale = unit || 1, rough = Math.max((hi - lo) / scale / count, 1e-300);
  const power = 10 ** Math.floor(Math.log10(rough)), digit = rough / power;
  const step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10) * scale;
  const out = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + 1e-9 * step && out.length < 50; ++i) out.push(i * step);
  return out;
}
function byteUnit(most) {
  return [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10].find(size => most >= size) || 1;
}
function logTicks(lo, hi) {
  const out = [];
  for (let p = Math.floor(Math.log10(lo)); p <= Math.ceil(Math.log10(hi)); ++p)
    for (const m of (hi / lo > 1e3 ? [1] : [1, 2, 5])) {
      const v = m * 10 ** p;
      if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v);
    }
  return out;
}

// Linear or logarithmic; y grows upwards.
function makeScale(lo, hi, from, to, isLog) {
  const f = isLog ? Math.log : v => v, a = f(lo), b = f(hi);
  const scale = v => from + (b > a ? (f(v) - a) / (b - a) : 0.5) * (to - from);
  scale.isLog = isLog; scale.lo = lo; scale.hi = hi;
  return scale;
}
function axes(x, y, options) {
  const format = options.isBytes ? bytesTick : options.format || short;
  const marks = y.isLog ? logTicks(y.lo, y.hi) : ticks(y.lo, y.hi, 5, options.isBytes ? byteUnit(y.hi) : 1);
  let out = "";
  for (const v of marks)
    out += `<path class="rule" d="M${L} ${y(v).toFixed(1)}H${W - R}"/><text x="${L - 7}" y="${(y(v) + 4).toFixed(1)}" text-anchor="end">${esc(format(v))}</text>`;
  for (const v of options.xTicks || ticks(x.lo, x.hi, 7).filter(Number.isInteger))
    out += `<path class="axis" d="M${x(v).toFixed(1)} ${H - B}v4"/><text x="${x(v).toFixed(1)}" y="${H - B + 17}" text-anchor="middle">${esc(short(v))}</text>`;
  out += `<path class="axis" d="M${L} ${T}V${H - B}H${W - R}"/>`;
  return out + `<text x="${(L + W - R) / 2}" y="${H - 3}" text-anchor="middle">${esc(options.xLabel || "step")}</text>`;
}

// A path through points [x, y], which lifts the pen where y is no number.
function path(points, x, y) {
  let out = "", pen = "M";
  for (const [px, py] of points) {
    if (!isNumber(py)) { pen = "M"; continue; }
    out += `${pen}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    pen = "L";
  }
  return out;
}
// Numbers that stand alone between gaps have no line: they become dots.
function lonely(points) {
  return points.filter(([, v], i) => isNumber(v) && !(i > 0 && isNumber(points[i - 1][1])) &&
                                     !(i + 1 < points.length && isNumber(points[i + 1][1])));
}
function band(low, high, x, y) {
  let out = "";
  for (let i = 0; i < low.length; ++i) {
    if (!isNumber(low[i][1])) continue;
    let end = i;
    while (end + 1 < low.length && isNumber(low[end + 1][1])) ++end;
    const up = high.slice(i, end + 1).map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`);
    const down = low.slice(i, end + 1).reverse().map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`);
    out += `M${up.concat(down).join("L")}Z`;
    i = end;
  }
  return out;
}

// The points of a series of the data: [step, value].
function pointsOf(series, key) {
  if (!series || !series[key]) return [];
  return series[key].map((v, i) => [series.first + i * series.width + (series.width - 1) / 2, v]);
}
// Each point the mean of those within one percent of the whole to either side; gaps stay.
function smoothed(points) {
  const reach = Math.floor(points.length / 100);
  if (points.length < 50 || reach < 1) return null;
  return points.map(([x, v], i) => {
    if (!isNumber(v)) return [x, null];
    const near = points.slice(Math.max(0, i - reach), i + reach + 1).map(p => p[1]).filter(isNumber);
    return [x, near.reduce((a, b) => a + b, 0) / near.length];
  });
}

// Tooltips: one box for the whole page.
const tip = make("div", {id: "tip"});
document.body.appendChild(tip);
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = "block";
  const width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8)) + "px";
}
const hideTip = () => { tip.style.display = "none"; };

function legend(entries) {
  return entries.length < 2 && !several ? "" : `<div class="legend">${entries.map(e =>
    `<span><b class="${e.kind || ""}" style="${e.kind === "box" || e.kind === "dot" ? "background" : "border-top-color"}:${e.colour}"></b>${esc(e.name)}</span>`).join("")}</div>`;
}
function figure(title, unit, body, caption) {
  ++numCharts;
  return make("figure", {}, `<h3>${esc(title)}${unit ? ` <span class="unit">${esc(unit)}</span>` : ""}</h3>${body}<figcaption>${esc(caption)}</figcaption>`);
}
const svg = (inside, label, height) =>
  `<svg viewBox="0 0 ${W} ${height || H}" role="img" aria-label="${esc(label)}">${inside}</svg>`;

// The highest value to draw: a few that lie far above all others would flatten the rest.
function highest(values, lo) {
  const sorted = [...values].sort((a, b) => a - b), most = sorted[Math.floor(0.995 * (sorted.length - 1))], top = sorted.at(-1);
  return values.length > 100 && top > most + 3 * (most - lo) && most > lo ? most + 0.3 * (most - lo) : top;
}

// lines: [{name, colour, points, low, high, gaps, faint, dash, dots}]; null without a number.
function lineChart(o) {
  const lines = o.lines.filter(line => line.points.some(p => isNumber(p[1])));
  if (lines.length === 0) return null;
  const all = lines.flatMap(line => [line.points, line.low || [], line.high || []].flat()).filter(p => isNumber(p[1]));
  const values = all.map(p => p[1]), lo = values.reduce((a, b) => Math.min(a, b)), hi = highest(values, lo);
  const cut = all.filter(p => p[1] > hi), cutTop = cut.reduce((a, p) => !a || p[1] > a[1] ? p : a, null);
  const isLog = Boolean(o.mayBeLog) && lo > 0 && hi / lo > 50;
  const pad = (hi - lo || Math.abs(hi) || 1) * 0.06;
  const bottom = isLog ? lo : o.fromZero ? Math.min(0, lo) : Math.max(lo - pad, lo >= 0 ? 0 : -Infinity);
  const scale = makeScale(bottom, isLog ? hi : hi + pad, H - B, T, isLog);
  const y = Object.assign(v => Math.max(T, scale(v)), scale);
  const xs = all.map(p => p[0]), first = xs.reduce((a, b) => Math.min(a, b)), last = xs.reduce((a, b) => Math.max(a, b));
  const x = makeScale(first, last, L, W - R, false);
  let inside = axes(x, y, {format: o.format, isBytes: o.isBytes, xTicks: first === last ? [first] : null});
  for (const line of lines) {
    const dash = line.dash ? ' stroke-dasharray="6 4"' : "";
    if (line.low) inside += `<path d="${band(line.low, line.high, x, y)}" fill="${line.colour}" opacity="0.22"/>`;
    inside += `<path d="${path(line.points, x, y)}" fill="none" stroke="${line.colour}" stroke-linejoin="round" stroke-width="${line.faint ? 1 : 2}" opacity="${line.faint ? 0.45 : 1}"${dash}/>`;
    for (const [px, py] of line.dots ? line.points.filter(p => isNumber(p[1])) : lonely(line.points))
      inside += `<circle cx="${x(px).toFixed(1)}" cy="${y(py).toFixed(1)}" r="${line.dots ? 3.2 : 2}" fill="${line.colour}"/>`;
    for (const at of line.gaps || [])
      inside += `<path d="M${x(at).toFixed(1)} ${T}V${H - B}" stroke="var(--c5)" stroke-width="1.5" opacity="0.6" stroke-dasharray="2 3"/>`;
  }
  for (const [px] of cut.slice(0, 40))
    inside += `<path d="M${x(px).toFixed(1)} ${T - 7}l4 6h-8z" fill="var(--c5)"/>`;
  inside += `<path class="cross rule" d=""/>`;
  const shown = lines.filter(line => !line.hidden).map(line => ({name: line.name, colour: line.colour, kind: line.dash ? "dash" : line.dots ? "dot" : ""}));
  const cutText = cutTop ? ` Red marks: values above the frame, up to ${(o.format || short)(cutTop[1])} near step ${Math.round(cutTop[0])}.` : "";
  const gaps = lines.some(line => line.gaps && line.gaps.length) ? " Red lines: steps whose value was not finite." : "";
  const result = figure(o.title, (o.unit || "") + (isLog ? ", logarithmic" : ""), legend(shown) + svg(inside, o.title), o.caption + gaps + cutText);
  followPointer(result, lines, x, o);
  return result;
}
function nearest(points, at) {
  let best = null;
  for (const p of points) if (isNumber(p[1]) && (!best || Math.abs(p[0] - at) < Math.abs(best[0] - at))) best = p;
  return best;
}
function followPointer(element, lines, x, o) {
  const picture = element.querySelector("svg"), cross = element.querySelector(".cross");
  picture.addEventListener("mousemove", event => {
    const box = picture.getBoundingClientRect(), px = (event.clientX - box.left) * W / box.width;
    const at = x.lo + Math.min(Math.max((px - L) / (W - R - L), 0), 1) * (x.hi - x.lo);
    const found = lines.filter(line => !line.faint || !line.smooth).map(line => [line, nearest(line.points, at)]).filter(f => f[1]);
    if (found.length === 0) return;
    cross.setAttribute("d", `M${x(at).toFixed(1)} ${T}V${H - B}`);
    showTip(event, found.map(([line, p]) => `${line.name}, step ${Math.round(p[0])}: ${(o.format || short)(p[1])}`).join("\n"));
  });
  picture.addEventListener("mouseleave", () => { hideTip(); cross.setAttribute("d", ""); });
}
)js";
}

}  // namespace anabatic::report
