"""The style sheet of an HTML report."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #5b6474; --edge: #dfe3ea;
  --whole: #7d8798; --bad: #c8442f; --good: #1f8a5b; --accent: #2f6fd0;
  --p0: #4c78c8; --p1: #8fb4e3; --p2: #2f9e8f; --p3: #e0a030; --p4: #b85c9e; --p5: #7a6bd0;
  --p6: #a3a65a; --p7: #d0785a; --rest: #b4bbc7; --in: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151b; --card: #1a1f28; --ink: #e6e9ef; --soft: #98a2b3; --edge: #2d3441;
  --whole: #6b7689; --bad: #f07860; --good: #4cc38a; --accent: #76a9fa;
  --p0: #6b95e0; --p1: #3f669c; --p2: #3fae9f; --p3: #c98f2c; --p4: #c774b2; --p5: #8f82e6;
  --p6: #8f9248; --p7: #c9714f; --rest: #545d6c; --in: #0d1016; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2, summary { font-size: 17px; font-weight: 650; margin: 0 0 10px; }
summary { cursor: pointer; margin: 0; }
details[open] summary { margin-bottom: 10px; }
.sub { color: var(--soft); margin: 2px 0 18px; overflow-wrap: anywhere; }
.headline { color: var(--ink); font-size: 19px; line-height: 1.35; margin: 0 0 14px; }
.verdict { display: flex; gap: 12px; align-items: baseline; flex-wrap: wrap; margin: 0 0 18px; }
.pill { border-radius: 999px; padding: 3px 14px; font-weight: 650; border: 1.5px solid;
  white-space: nowrap; }
.pill.bad { color: var(--bad); } .pill.good { color: var(--good); }
  .pill.plain { color: var(--accent); } .pill.unsure { color: var(--soft); border-style: dashed; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px;
  margin: 0 0 12px; }
.figures div, section { background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px; padding: 14px 18px; }
.figures dt { color: var(--soft); font-size: 13px; } .figures dd { margin: 0; }
  .figures .big { font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.figures .below { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
section { margin: 12px 0; padding: 18px; }
.warning { border-left: 4px solid var(--p3); }
p { margin: 0 0 10px; color: var(--soft); overflow-wrap: anywhere; }
  .warning p { margin: 0; color: var(--ink); } .verdict p { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--edge);
  vertical-align: top; overflow-wrap: anywhere; }
td:first-child { min-width: 150px; } th { color: var(--soft); font-weight: 500; }
  .n { text-align: right; white-space: nowrap; } tr:last-child td { border-bottom: 0; }
.total tr:last-child td { font-weight: 650; border-top: 1.5px solid var(--soft); }
.cause { border-left: 4px solid var(--bad); padding: 2px 0 2px 14px; margin: 0 0 14px; }
.cause b { font-size: 15px; } .cause p { margin: 2px 0 0; } .cause .try { color: var(--ink); }
svg { display: block; width: 100%; height: auto; margin: 4px 0 14px;
  font: 12px system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; }
  svg .faint { fill: var(--soft); font-size: 11px; } svg .strong { font-weight: 650; }
svg .inside { fill: var(--in); font-weight: 600; } svg .inside-cell { font-size: 11.5px; }
.whole { fill: var(--whole); } .bad { fill: var(--bad); } .good { fill: var(--good); }
  .rest { fill: var(--rest); } .used { fill: var(--accent); }
.warm-up { fill: var(--p3); } .epoch-start { fill: var(--p4); }
  .partial-batch { fill: var(--p2); } .apart { fill: var(--p6); }
.part0 { fill: var(--p0); } .part1 { fill: var(--p1); } .part2 { fill: var(--p2); }
  .part3 { fill: var(--p3); }
.part4 { fill: var(--p4); } .part5 { fill: var(--p5); } .part6 { fill: var(--p6); }
  .part7 { fill: var(--p7); }
.flame-own { fill: var(--p3); stroke: var(--card); } .flame-other { fill: var(--rest);
  stroke: var(--card); fill-opacity: 0.55; } svg .flame-name { font: 11px ui-monospace, monospace;
  pointer-events: none; } rect.flame-own:hover, rect.flame-other:hover { stroke: var(--ink); }
.cell { fill: var(--page); stroke: var(--edge); } .grid { stroke: var(--edge); }
  .link { stroke: var(--soft); stroke-dasharray: 2 3; }
  .whisker { stroke: var(--ink); stroke-width: 1.5; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media (max-width: 600px) { section { overflow-x: auto; } section svg { min-width: 640px; }
  th, td { overflow-wrap: break-word; } }
@media print { body { background: none; } section, .figures div { break-inside: avoid; } }
"""
