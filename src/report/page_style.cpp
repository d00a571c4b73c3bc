// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

namespace anabatic::report {

const char* style() {
  return R"css(
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2126; --soft: #5c6570; --line: #d9dee3; --panel: #f7f8fa; --mark: #fff3cd;
  --c0: #2563a8; --c1: #c2571a; --c2: #1f7a4d; --c3: #8a4bb0; --c4: #a47a00; --c5: #c0392b; --c6: #0e7c86; --c7: #6b7280;
  --heat-low: #b2182b; --heat-even: #f4f4f2; --heat-high: #2166ac;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e4e7ea; --soft: #9aa4ae; --line: #343b42; --panel: #1b1f23; --mark: #4a3d10;
    --c0: #6ea8e6; --c1: #f0935a; --c2: #5fc08d; --c3: #c294e0; --c4: #dcb44a; --c5: #f08072; --c6: #55c3cc; --c7: #a3abb5;
    --heat-low: #e0566a; --heat-even: #2a2f35; --heat-high: #5b9bdc;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 24px; margin: 0 0 2px; }
h2 { font-size: 19px; margin: 34px 0 10px; padding-top: 10px; border-top: 2px solid var(--line); }
h3 { font-size: 15px; margin: 0 0 2px; }
p.soft, .soft { color: var(--soft); }
p { margin: 4px 0 8px; }
nav { margin: 8px 0 0; } nav a { color: var(--c0); margin-right: 14px; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 540px), 1fr)); }
.heat { grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); }
figure { margin: 0; padding: 12px 14px 10px; background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  break-inside: avoid; min-width: 0; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 4px; }
.unit { color: var(--soft); font-weight: normal; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; }
svg .axis { stroke: var(--soft); fill: none; } svg .rule { stroke: var(--line); fill: none; }
canvas { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--line); }
.heatbox { display: grid; grid-template-columns: 26px 1fr; column-gap: 4px; font-size: 11px; color: var(--soft); }
.heatbox .rows { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.heatbox .ends { grid-column: 2; display: flex; justify-content: space-between; }
.scale { display: flex; align-items: center; gap: 8px; margin: 0 0 10px; font-size: 13px; color: var(--soft); flex-wrap: wrap; }
.scale .key { position: relative; display: block; width: 330px; height: 34px; margin-left: 34px; }
.scale b { position: absolute; top: 15px; transform: translateX(-50%); font-weight: normal; white-space: nowrap; }
.beside-2 { grid-template-columns: repeat(2, 1fr); } .beside-3 { grid-template-columns: repeat(3, 1fr); }
.beside-4 { grid-template-columns: repeat(4, 1fr); }
.scale i { display: block; width: 100%; height: 12px; border: 1px solid var(--line);
  background: linear-gradient(90deg, var(--heat-low), var(--heat-even) 33.3%, var(--heat-high)); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12.5px; margin: 2px 0 4px; color: var(--soft); }
.legend span { white-space: nowrap; }
.legend b { display: inline-block; width: 18px; height: 0; margin-right: 5px; vertical-align: middle; border-top: 3px solid; }
.legend b.box { width: 11px; height: 11px; border: 0; } .legend b.dash { border-top-style: dashed; }
.legend b.dot { width: 7px; height: 7px; border: 0; border-radius: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: 3px 16px 3px 0; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; } thead th { border-bottom: 2px solid var(--line); }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; } td.num { text-align: right; }
tr.differs td { background: var(--mark); } td.key { white-space: nowrap; font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
pre { overflow-x: auto; background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 12px; font-size: 12.5px; }
#tip { position: fixed; display: none; pointer-events: none; background: var(--ink); color: var(--paper); padding: 5px 9px;
  border-radius: 4px; font-size: 12.5px; max-width: 360px; z-index: 9; white-space: pre-line; }
.broken { background: var(--mark); padding: 8px 12px; border-radius: 6px; margin: 10px 0; }
label { font-size: 14px; }
@media print { body { font-size: 11px; } main { padding: 0; max-width: none; } nav, label { display: none; } .grid { gap: 8px; }
  .grid { grid-template-columns: 1fr; } .heat { grid-template-columns: 1fr 1fr 1fr; } .beside-2 { grid-template-columns: 1fr 1fr; } h2 { break-after: avoid; } }
)css";
}

}  // namespace anabatic::report
