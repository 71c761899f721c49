"use strict";
// One step in time: a lane for compute and each link. Drawn on a canvas, since there are thousands.
(function () {
  const box = document.getElementById("timeline-chart");
  const data = page.timeline;
  if (!box || !data) return;
  const LANE = 0, KIND = 1, START = 2, LENGTH = 3, NAME = 4, SOURCE = 5, MOVE = 6, TIMES = 7;
  const laneHigh = 34, gap = 10, axisHigh = 24, mapHigh = 36, top = 6;
  const end = d3.max(data.intervals, (d) => d[START] + d[LENGTH]) || 1;
  const lanes = data.lanes.map((_, n) => data.intervals.filter((d) => d[LANE] === n));
  const high = top + data.lanes.length * (laneHigh + gap) + axisHigh;
  const canvas = d3.select(box).append("canvas").attr("aria-hidden", "true").style("height", high + "px");
  const map = d3.select(box).append("svg").attr("height", mapHigh).attr("role", "img")
    .attr("aria-label", "The whole step; drag to choose a part of it");
  const live = document.getElementById("timeline-live");
  const moves = new Map(page.collectives.map((m) => [m[0], m]));
  const fills = ["compute", "wait", "exposed", "hidden"];
  let width = 0, left = 0, x = d3.scaleLinear().domain([0, end]), chosen = null, brush = null;

  function draw() {
    width = box.clientWidth;
    left = Math.min(96, 8 + 7 * d3.max(data.lanes, (l) => l.length));
    x.range([left, width - 6]);
    const scale = devicePixelRatio || 1, node = canvas.node(), pen = node.getContext("2d");
    node.width = width * scale;
    node.height = high * scale;
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, high);
    pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    lanes.forEach((items, n) => lane(pen, items, n));
    axis(pen);
    overview();
    box.dataset.from = x.domain()[0];
    box.dataset.to = x.domain()[1];
  }

  function lane(pen, items, n) {
    const y = top + n * (laneHigh + gap), [from, to] = x.domain();
    pen.fillStyle = color("soft");
    pen.textBaseline = "middle";
    pen.fillText(data.lanes[n], 0, y + laneHigh / 2);
    pen.fillStyle = color("bg");
    pen.fillRect(left, y, width - 6 - left, laneHigh);
    // What is waited for lies on what it delays.
    for (const kind of [0, 3, 1, 2]) {
      pen.fillStyle = color(fills[kind]);
      for (const d of items) {
        if (d[KIND] !== kind || d[START] + d[LENGTH] < from || d[START] > to) continue;
        const a = Math.max(x(d[START]), left), b = Math.min(x(d[START] + d[LENGTH]), width - 6);
        const wide = Math.max(b - a - (b - a > 4 ? 1 : 0), 0.6);
        pen.globalAlpha = kind === 3 ? 0.85 : 1;
        pen.fillRect(a, y, wide, laneHigh);
        pen.globalAlpha = 1;
        if (wide > 60) label(pen, data.names[d[NAME]], a, y, wide, kind);
        if (d === chosen) outline(pen, a, y, wide);
      }
    }
  }

  function label(pen, text, a, y, wide, kind) {
    const fill = pen.fillStyle;
    pen.save();
    pen.beginPath();
    pen.rect(a, y, wide, laneHigh);
    pen.clip();
    pen.fillStyle = d3.lab(fill).l > 62 ? "#101418" : "#fff";
    pen.fillText(text, a + 4, y + laneHigh / 2);
    pen.restore();
    pen.fillStyle = fill;
  }

  function outline(pen, a, y, wide) {
    pen.strokeStyle = color("ink");
    pen.lineWidth = 2;
    pen.strokeRect(a, y + 1, Math.max(wide, 2), laneHigh - 2);
  }

  function axis(pen) {
    const y = top + data.lanes.length * (laneHigh + gap);
    pen.strokeStyle = color("line");
    pen.fillStyle = color("soft");
    pen.textAlign = "center";
    const ticks = x.ticks(Math.max(width / 120, 2));
    const digits = ticks.length > 1 ? ticks[1] - ticks[0] : end;
    for (const t of ticks) {
      pen.beginPath();
      pen.moveTo(x(t), top);
      pen.lineTo(x(t), y + 2);
      pen.stroke();
      pen.fillText(tick(t, digits), Math.min(Math.max(x(t), left + 14), width - 26), y + 12);
    }
    pen.textAlign = "left";
  }

  function tick(t, step) {
    const [unit, scale] = end >= 1e6 ? ["s", 1e6] : end >= 1e3 ? ["ms", 1e3] : ["us", 1];
    return (t / scale).toFixed(Math.max(0, -Math.floor(Math.log10(step / scale)))) + " " + unit;
  }

  // The whole step, small, with the part that is shown.
  function overview() {
    const all = d3.scaleLinear().domain([0, end]).range([left, width - 6]);
    map.attr("viewBox", `0 0 ${width} ${mapHigh}`);
    map.selectAll("rect.busy").data(bins(all)).join("rect").attr("class", "busy")
      .attr("x", (d) => d.x).attr("width", (d) => d.w).attr("y", (d) => mapHigh - 4 - d.h).attr("height", (d) => d.h)
      .attr("fill", (d) => color(d.kind));
    if (!brush) {
      brush = d3.brushX().on("end", (event) => {
        if (!event.sourceEvent) return;
        if (!event.selection) return zoomTo(0, end);
        const whole = d3.scaleLinear().domain([0, end]).range([left, width - 6]);
        zoomTo(whole.invert(event.selection[0]), whole.invert(event.selection[1]));
      });
      map.append("g").attr("class", "brush");
    }
    brush.extent([[left, 0], [width - 6, mapHigh - 2]]);
    map.select("g.brush").raise().call(brush).call(brush.move, x.domain().map(all));
  }

  // The share of compute and of waiting in each of so many parts of the step.
  function bins(all) {
    const count = 160, found = d3.range(count).map(() => [0, 0]);
    for (const d of lanes[0]) {
      const first = Math.floor((d[START] / end) * count), last = Math.floor(((d[START] + d[LENGTH]) / end) * count);
      for (let n = first; n <= Math.min(last, count - 1); n++) {
        const a = Math.max(d[START], (n * end) / count), b = Math.min(d[START] + d[LENGTH], ((n + 1) * end) / count);
        found[n][d[KIND] === 0 ? 0 : 1] += (Math.max(b - a, 0) * count) / end;
      }
    }
    const w = (all(end) - all(0)) / count, h = mapHigh - 8;
    return found.flatMap(([work, wait], n) => [
      { kind: work > wait ? "compute" : "wait", x: all(0) + n * w, w: w, h: h * Math.min(work + wait, 1) },
    ]);
  }

  function zoomTo(from, to) {
    const least = end / 2e4, wide = Math.min(Math.max(to - from, least), end);
    const start = Math.min(Math.max(from, 0), end - wide);
    x.domain([start, start + wide]);
    draw();
  }

  function zoomBy(factor, at) {
    const [from, to] = x.domain(), center = at === undefined ? (from + to) / 2 : at;
    zoomTo(center - (center - from) * factor, center + (to - center) * factor);
  }

  function pan(share) {
    const [from, to] = x.domain();
    zoomTo(from + share * (to - from), to + share * (to - from));
  }

  const actions = {
    in: () => zoomBy(0.5), out: () => zoomBy(2), left: () => pan(-0.4), right: () => pan(0.4), reset: () => zoomTo(0, end),
  };
  document.querySelectorAll("[data-zoom]").forEach((b) => b.addEventListener("click", actions[b.dataset.zoom]));
  const keys = {
    "+": actions.in, "=": actions.in, "-": actions.out, ArrowLeft: actions.left, ArrowRight: actions.right,
    Home: actions.reset, n: () => step(1), p: () => step(-1),
  };
  box.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });

  function step(by) {
    const row = lanes[0], at = row.indexOf(chosen);
    chosen = row[Math.min(Math.max(at + by, 0), row.length - 1)];
    const [from, to] = x.domain();
    if (chosen[START] < from || chosen[START] > to) zoomTo(chosen[START] - (to - from) / 4, chosen[START] + (3 * (to - from)) / 4);
    live.textContent = tell(chosen).replaceAll("\n", ", ");
    draw();
  }

  function tell(d) {
    const move = moves.get(d[MOVE]);
    const lines = [data.names[d[NAME]], `${data.kinds[d[KIND]]}, ${time(d[LENGTH])} from ${time(d[START])} on`];
    if (data.sources[d[SOURCE]]) lines.push(data.sources[d[SOURCE]]);
    if (move) lines.push(`${move[1]} along ${move[2].join(", ")}, ${bytes(move[3])} each`);
    if (d[TIMES] > 1) lines.push(`${d[TIMES]} executions`);
    return lines.join("\n");
  }

  // What is under the pointer: what is waited for first, since it is drawn last.
  function under(event) {
    const [px, py] = d3.pointer(event, canvas.node());
    const n = Math.floor((py - top) / (laneHigh + gap)), t = x.invert(px), slack = (x.domain()[1] - x.domain()[0]) / width;
    if (!lanes[n] || px < left) return null;
    const hits = lanes[n].filter((d) => d[START] - slack <= t && t <= d[START] + d[LENGTH] + slack);
    return hits.find((d) => d[KIND] === 2 || d[KIND] === 1) || hits[0] || null;
  }

  canvas.on("mousemove", (event) => {
    const found = under(event);
    if (found) showTip(event, tell(found));
    else hideTip();
  }).on("mouseleave", hideTip).on("click", (event) => {
    chosen = under(event);
    live.textContent = chosen ? tell(chosen).replaceAll("\n", ", ") : "";
    draw();
  }).on("dblclick", (event) => zoomBy(0.4, x.invert(d3.pointer(event, canvas.node())[0])))
    .on("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      zoomBy(event.deltaY > 0 ? 1.25 : 0.8, x.invert(d3.pointer(event, canvas.node())[0]));
    })
    .call(d3.drag().on("drag", (event) => {
      const [from, to] = x.domain(), by = (event.dx * (to - from)) / (width - left);
      zoomTo(from - by, to - by);
    }));
  redraws.push(draw);
  draw();
})();
