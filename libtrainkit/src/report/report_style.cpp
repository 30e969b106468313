// Style and script of report.html.
#include "report/report_parts.h"

namespace trainkit::detail {

const char kReportStyle[] = R"css(
:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--text:#1c2127;--muted:#57606a;--line:#dfe3e8;--code:#eef0f3;
--good:#1a7f37;--warn:#9a5b00;--bad:#b3261e;--live:#0b6bcb;
--c0:#0b6bcb;--c1:#c8501a;--c2:#0f8a5f;--c3:#9a4fbf;--c4:#a87900;--c5:#c2185b;--c6:#00838f;--c7:#6b7280}
@media(prefers-color-scheme:dark){:root{--page:#0d1115;--card:#151a20;--text:#e6e9ec;--muted:#a0a9b3;--line:#2a313a;
--code:#20262e;--good:#267c3f;--warn:#9c6410;--bad:#c73b33;--live:#2373c4;
--c0:#5aaef0;--c1:#ff9a52;--c2:#3ecf9a;--c3:#c58af0;--c4:#e5b93c;--c5:#f5719f;--c6:#45c6d1;--c7:#9aa3ad}}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.c6{--c:var(--c6)}.c7{--c:var(--c7)}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1240px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0;overflow-wrap:anywhere}h2{font-size:17px;margin:34px 0 12px}
h3{font-size:15px;margin:20px 0 8px}h4{font-size:13px;margin:14px 0 4px;color:var(--muted);font-weight:600}
p{margin:8px 0}.sub,.note,small{color:var(--muted);overflow-wrap:anywhere}.note{font-size:13px;margin:6px 0 0}
.badge{display:inline-block;vertical-align:middle;border-radius:999px;padding:2px 11px;font-size:13px;font-weight:600;
color:#fff;background:var(--good)}.badge.stopped{background:var(--warn)}.badge.failed{background:var(--bad)}
.badge.running{background:var(--live)}
.problem,.warning,.advice{border:1px solid var(--line);border-left:4px solid var(--bad);background:var(--card);
border-radius:8px;padding:10px 14px;overflow-wrap:anywhere}.warning{border-left-color:var(--warn)}
.advice{border-left-color:var(--live);margin:0;padding-left:32px}
.tiles{display:grid;grid-template-columns:repeat(var(--wide),minmax(0,1fr));gap:12px;margin:20px 0 0}
.tiles.odd>.tile:first-child{grid-column:span 2}@media(max-width:900px){.tiles{grid-template-columns:repeat(var(--middle),
minmax(0,1fr))}}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px;min-width:0}
.tile>*{display:block;overflow-wrap:anywhere}.tile .name{font-size:13px;color:var(--muted)}
.tile b{font-size:25px;line-height:1.25;font-weight:650;letter-spacing:-.01em}.tile small{font-size:12.5px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:14px}
figure{margin:0;min-width:0}
.chart{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px 10px}
figcaption{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline;margin-bottom:12px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:13px;color:var(--muted)}
.key{overflow-wrap:anywhere}.key[class*=" c"]::before{content:"";display:inline-block;width:14px;height:3px;
border-radius:2px;margin:0 6px 3px 0;background:var(--c)}.key.raw::before{opacity:.35}
.key.d1::before{background:repeating-linear-gradient(90deg,var(--c) 0 5px,transparent 5px 8px)}
.key.d2::before{background:repeating-linear-gradient(90deg,var(--c) 0 2px,transparent 2px 5px)}
.line.d1{stroke-dasharray:9 5}.line.d2{stroke-dasharray:2 5}
.plot{position:relative;height:210px;margin:0 6px 0 58px;outline-offset:4px;touch-action:pan-y}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.plot path{fill:none;vector-effect:non-scaling-stroke}
.line{stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.line.raw{stroke-width:1;opacity:.35}.dots{stroke:var(--c);stroke-width:6;stroke-linecap:round}
.gap{stroke:var(--bad);stroke-width:8;stroke-linecap:round}.mark{stroke:var(--bad);stroke-width:8;stroke-linecap:round}
.rule{stroke:var(--muted);stroke-width:1;stroke-dasharray:4 4}.band{fill:var(--muted);opacity:.18}
.grid{stroke:var(--line);stroke-width:1}
.labels span{position:absolute;font-size:11.5px;line-height:1;color:var(--muted);white-space:nowrap}
.labels .y{right:100%;margin-right:8px;transform:translateY(-50%)}
.labels .x{top:100%;margin-top:8px;transform:translateX(-50%)}
.xlabel{font-size:11.5px;color:var(--muted);text-align:right;margin:24px 6px 0 0;line-height:1}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--muted);pointer-events:none}
.tip{position:absolute;top:4px;z-index:2;pointer-events:none;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:6px 10px;font-size:12.5px;line-height:1.45;box-shadow:0 4px 14px #0003;max-width:calc(50% - 12px);
width:max-content}.tip b{display:block}.tip span{display:block}
details{margin-top:8px;font-size:13px}summary{cursor:pointer;color:var(--muted);padding:3px 0}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
.chart .scroll{max-height:260px;overflow:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:6px 14px;border-top:1px solid var(--line);vertical-align:top;font-weight:400;
overflow-wrap:anywhere}td{min-width:9em}.n,.chart td{min-width:0}
thead th{border-top:0;color:var(--muted);font-size:13px;font-weight:600;white-space:nowrap}
thead+tbody tr:first-child>*{border-top:1px solid var(--line)}tbody:first-child tr:first-child>*{border-top:0}
tbody th{white-space:nowrap}.n,.chart td{text-align:right;white-space:nowrap}
code,pre{font:13px/1.5 ui-monospace,"Cascadia Mono",Menlo,Consolas,monospace}
code{background:var(--code);border-radius:4px;padding:1px 5px;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px;margin:6px 0;
white-space:pre-wrap;overflow-wrap:anywhere;overflow-x:auto}
.bar{display:flex;height:26px;border-radius:8px;overflow:hidden;margin:0 0 12px;background:var(--line)}
.bar i{display:block;background:var(--c)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:8px;background:var(--c);
border:1px solid #0003}
.meter{display:inline-block;width:84px;height:7px;border-radius:4px;background:var(--line);margin-right:10px;
vertical-align:middle;overflow:hidden}.meter i{display:block;height:100%;background:var(--c0)}
.matrix{width:auto;font-size:13px}.matrix td{text-align:center;padding:6px 10px;min-width:3em}
.matrix thead th{white-space:normal;max-width:9em;vertical-align:bottom}
.hit{background:color-mix(in srgb,var(--c0) var(--shade),var(--card))}
.miss{background:color-mix(in srgb,var(--c1) var(--shade),var(--card))}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:14px}
.pictures figure{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px}
.pictures img{width:100%;height:auto;display:block;border-radius:4px;image-rendering:pixelated}
.pictures figcaption{margin:8px 0 0;font-size:13px;color:var(--muted)}
:focus-visible{outline:2px solid var(--live)}
.stale{position:sticky;top:0;z-index:3;background:var(--warn);color:#fff;text-align:center;padding:4px}
@media(max-width:520px){main{padding:18px 14px 40px}.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.tile b{font-size:21px}.chart{padding:10px 12px}.plot{margin-left:50px;height:180px}th,td{padding:6px 10px}
.meter{width:44px}tbody th{white-space:normal}}
@media print{:root{color-scheme:light;--page:#fff;--card:#fff;--text:#000;--muted:#444;--line:#ccc;--code:#eee;
--good:#1a7f37;--warn:#9a5b00;--bad:#b3261e;--live:#0b6bcb;
--c0:#0b6bcb;--c1:#c8501a;--c2:#0f8a5f;--c3:#9a4fbf;--c4:#a87900;--c5:#c2185b;--c6:#00838f;--c7:#6b7280}
.scroll,.chart .scroll{overflow:visible;max-height:none}table,.matrix{font-size:10px}
th,td,thead th,tbody th,.n,.matrix td{white-space:normal;min-width:0;padding:3px 5px;overflow-wrap:anywhere}main{max-width:none;padding:0}
.chart,.tile,figure,tr{break-inside:avoid}.chart details,.tip,.cursor,.stale{display:none}
.plot path,.bar i,.swatch,.band{print-color-adjust:exact}h2{break-after:avoid}
body{font-size:12px}.charts{grid-template-columns:1fr 1fr}.bar i,.swatch,.badge,td,.meter i{print-color-adjust:exact}}
)css";

const char kReportScript[] = R"js(
'use strict';
const count = v => { const a = Math.abs(v);
  return a >= 1e9 ? (v / 1e9).toPrecision(3) + 'G' : a >= 1e6 ? (v / 1e6).toPrecision(3) + 'M' :
         a >= 1e3 ? (v / 1e3).toPrecision(3) + 'k' : String(+v.toPrecision(3)); };
const size = v => { let unit = 0; while (Math.abs(v) >= 1024 && unit < 4) { v /= 1024; ++unit; }
  return +v.toPrecision(4) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]; };
const duration = v => { const s = Math.round(v), two = n => String(n).padStart(2, '0');
  return s >= 3600 ? Math.floor(s / 3600) + ':' + two(Math.floor(s / 60) % 60) + ':' + two(s % 60)
                   : Math.floor(s / 60) + ':' + two(s % 60); };
const number = v => String(+v.toPrecision(5));
const formats = [number, count, size, v => +(100 * v).toPrecision(4) + '%', v => String(+v.toPrecision(3)),
                 v => String(Math.round(v)), duration];

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) { const middle = (low + high) >> 1; points[middle][0] < x ? low = middle + 1 : high = middle; }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? low - 1 : low;
}

function setUp(figure) {
  const plot = figure.querySelector('.plot'), tip = plot.querySelector('.tip'), cursor = plot.querySelector('.cursor');
  const data = JSON.parse(figure.querySelector('script').textContent), [first, last] = data.x;
  const xs = [...new Set(data.s.flatMap(series => series.p.map(point => point[0])))].sort((a, b) => a - b);
  let at = -1;
  function show(index) {
    at = Math.max(0, Math.min(xs.length - 1, index));
    const x = xs[at], share = (x - first) / (last - first);
    cursor.style.left = 100 * share + '%';
    tip.replaceChildren();
    const head = document.createElement('b');
    head.textContent = data.xl + ' ' + formats[data.xf](x);
    tip.append(head);
    for (const series of data.s) {
      const point = series.p[nearest(series.p, x)];
      const line = document.createElement('span');
      line.className = 'key ' + series.c + (series.r ? ' raw' : '');
      line.textContent = series.n + ': ' + (point[1] === null ? 'not finite' : formats[data.yf](point[1])) +
          (point[0] === x ? '' : ' (' + formats[data.xf](point[0]) + ')');
      tip.append(line);
    }
    const close = (last - first) / 100;
    for (const [from, to, label] of data.m) {
      if (x < from - close || x > to + close) continue;
      const line = document.createElement('span');
      line.textContent = label;
      tip.append(line);
    }
    cursor.hidden = tip.hidden = false;
    tip.style.left = share > .5 ? 'auto' : 'calc(' + 100 * share + '% + 10px)';
    tip.style.right = share > .5 ? 'calc(' + 100 * (1 - share) + '% + 10px)' : 'auto';
    announce.textContent = tip.innerText.replace(/\n/g, ', ');
  }
  const hide = () => { cursor.hidden = tip.hidden = true; };
  plot.addEventListener('pointermove', event => {
    const box = plot.getBoundingClientRect();
    const x = first + (last - first) * (event.clientX - box.left) / box.width;
    show(nearest(xs.map(value => [value]), x));
  });
  plot.addEventListener('pointerleave', hide);
  plot.addEventListener('blur', hide);
  plot.addEventListener('keydown', event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (step) show(at < 0 ? (step > 0 ? 0 : xs.length - 1) : at + step);
    else if (event.key === 'Home') show(0);
    else if (event.key === 'End') show(xs.length - 1);
    else if (event.key === 'Escape') hide();
    else return;
    event.preventDefault();
  });
}

const main = document.querySelector('main');
const announce = document.createElement('div');
announce.setAttribute('aria-live', 'polite');
announce.style.cssText = 'position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)';
main.after(announce);
const setUpAll = () => main.querySelectorAll('.chart').forEach(setUp);
setUpAll();

// A page of `trainkit watch` fetches its content again. Opened details stay open; a chart in use is left alone.
const live = document.body.dataset.live;
if (live) {
  const stale = document.createElement('div');
  stale.className = 'stale';
  stale.textContent = 'trainkit watch has ended: this page no longer updates.';
  let shown = '', tag = '';
  const update = async () => {
    try {
      const answer = await fetch(live, { cache: 'no-store', headers: tag ? { 'If-None-Match': tag } : {} });
      stale.remove();
      if (answer.ok) {
        tag = answer.headers.get('ETag') || '';
        shown = await answer.text();
      }
      const busy = main.querySelector('.tip:not([hidden])') || main.querySelector('pre:focus');
      if (shown && !busy) {
        const open = [...main.querySelectorAll('details')].map(each => each.open);
        const focus = [...main.querySelectorAll('[tabindex]')].indexOf(document.activeElement);
        main.innerHTML = shown;
        shown = '';
        main.querySelectorAll('details').forEach((each, i) => { each.open = open[i] || false; });
        if (focus >= 0) main.querySelectorAll('[tabindex]')[focus]?.focus({ preventScroll: true });
        setUpAll();
      }
    } catch { document.body.prepend(stale); }
    setTimeout(update, 2000);
  };
  setTimeout(update, 2000);
}
)js";

}  // namespace trainkit::detail
