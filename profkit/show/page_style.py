"""The style sheet of an HTML report."""

from __future__ import annotations

from profkit.show.palette import PHASE_COLOURS

_LIGHT = _DARK = _FILLS = ""
for _phase, _colours in PHASE_COLOURS.items():
    _LIGHT += f" --{_phase}: {_colours.light};"
    _DARK += f" --{_phase}: {_colours.dark};"
    _FILLS += f" .{_phase} {{ fill: var(--{_phase}); }}"

STYLE = f""":root {{{_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{{_DARK} }} }}
{_FILLS}
"""
STYLE += """:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #5b6474; --edge: #dfe3ea;
  --whole: #7d8798; --bad: #c8442f; --good: #1f8a5b; --accent: #2f6fd0;
  --rest: #b4bbc7; --in: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151b; --card: #1a1f28; --ink: #e6e9ef; --soft: #98a2b3; --edge: #2d3441;
  --whole: #6b7689; --bad: #f07860; --good: #4cc38a; --accent: #76a9fa;
  --rest: #545d6c; --in: #0d1016; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2, summary { font-size: 17px; font-weight: 650; margin: 0 0 10px; }
summary { cursor: pointer; margin: 0; }
details[open] summary { margin-bottom: 10px; }
.sub { color: var(--soft); margin: 2px 0 18px; overflow-wrap: anywhere; }
.answer { color: var(--ink); font-size: 19px; line-height: 1.35; margin: 0 0 8px;
  background: var(--card); border: 1px solid var(--edge); border-left: 6px solid var(--accent);
  border-radius: 10px; padding: 12px 18px; font-weight: 600; }
.answer.bad { border-left-color: var(--bad); } .answer.good { border-left-color: var(--good); }
  .answer.unsure { border-left: 6px dashed var(--soft); }
.advice { color: var(--ink); margin: 0 0 10px 24px; }
.state { font-size: 13px; margin: 0 0 14px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px;
  margin: 0 0 12px; }
.figures div, section { background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px; padding: 14px 18px; }
.figures dt { color: var(--soft); font-size: 13px; } .figures dd { margin: 0; }
  .figures .big { font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.figures .below { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
section { margin: 12px 0; padding: 18px; }
.warning { border-left: 4px solid var(--data); }
p { margin: 0 0 10px; color: var(--soft); overflow-wrap: anywhere; }
  .warning p { margin: 0; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--edge);
  vertical-align: top; overflow-wrap: anywhere; }
td:first-child { min-width: 150px; } th { color: var(--soft); font-weight: 500; }
  .n { text-align: right; white-space: nowrap; } tr:last-child td { border-bottom: 0; }
.total tr:last-child td { font-weight: 650; border-top: 1.5px solid var(--soft); }
.cause { border-left: 4px solid var(--bad); padding: 2px 0 2px 14px; margin: 0 0 14px; }
.cause.good { border-left-color: var(--good); }
.cause b { font-size: 15px; } .cause p { margin: 2px 0 0; } .cause .try { color: var(--ink); }
:not(svg) > svg { display: block; width: 100%; margin: 4px 0 14px;
  font: 12px system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
svg[viewBox] { height: auto; } .rows > svg { margin: 0; } .mark { overflow: visible; }
.rows { display: grid; grid-template-columns: minmax(70px, auto) 1fr auto; column-gap: 12px;
  align-items: center; margin: 0 0 10px; font-size: 13px; font-variant-numeric: tabular-nums; }
.rows .figure { white-space: nowrap; } .figure span, .faint, .legend, .ends { color: var(--soft);
  font-size: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 10px; }
.legend span { display: inline-flex; align-items: center; gap: 5px; }
.legend span > svg { display: inline-block; width: 10px; margin: 0; }
.ends { display: flex; justify-content: space-between; margin: -10px 0 6px; }
.strong { font-weight: 650; color: var(--ink); }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; }
  svg .faint { fill: var(--soft); font-size: 11px; } svg .strong { font-weight: 650; }
svg .inside { fill: var(--in); font-weight: 600; } svg .inside-cell { font-size: 11.5px; }
.whole { fill: var(--whole); } .bad { fill: var(--bad); } .good { fill: var(--good); }
  .rest { fill: var(--rest); } .used { fill: var(--accent); }
.warm-up { fill: var(--data); } .epoch-start { fill: var(--h2d); }
  .partial-batch { fill: var(--optimizer); } .apart { fill: var(--other); }
.flame-own { fill: var(--data); stroke: var(--card); } .flame-other { fill: var(--rest);
  stroke: var(--card); fill-opacity: 0.55; } svg .flame-name { font: 11px ui-monospace, monospace;
  pointer-events: none; } rect.flame-own:hover, rect.flame-other:hover { stroke: var(--ink); }
.cell { fill: var(--page); stroke: var(--edge); } .grid { stroke: var(--edge); }
  .border { stroke: var(--ink); stroke-dasharray: 3 2; }
  .link { stroke: var(--soft); stroke-dasharray: 2 3; }
  .whisker { stroke: var(--ink); stroke-width: 1.5; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media (max-width: 600px) { main { padding: 16px 10px 32px; }
  .figures { grid-template-columns: 1fr 1fr; gap: 8px; } .figures div { padding: 8px 12px; }
  .figures .big { font-size: 17px; } section { padding: 12px; }
  section svg[viewBox] { min-width: 640px; } .scroll { margin: 0 -4px; }
  .rows { column-gap: 8px; font-size: 12px; grid-template-columns: auto 1fr auto; }
  .figure span { display: block; font-size: 11px; }
  th, td { overflow-wrap: normal; padding-right: 8px; } table { font-size: 13px; }
  td:first-child { min-width: 0; } td:last-child:not(.n) { min-width: 140px; } }
@media print { body { background: none; } section, .figures div { break-inside: avoid; } }
"""
