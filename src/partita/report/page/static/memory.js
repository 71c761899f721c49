"use strict";
// Memory over the step, by what it is for.
(function () {
  const box = document.getElementById("memory-chart");
  const data = page.memory;
  if (!box || !data) return;
  const palette = ["#3b78d8", "#8a63d2", "#2fa58b", "#8c96a3", "#d9822b", "#c4506a", "#c9a227", "#6b7480"];
  const kinds = Object.keys(data.over_time), high = 260;
  const order = ["parameters", "optimizer state", "inputs", "constants", "activations", "gradients", "gathered copies", "other"];
  const fill = d3.scaleOrdinal(order, palette);
  const rows = data.positions.map((at, n) => ({ at, ...Object.fromEntries(kinds.map((k) => [k, data.over_time[k][n]])) }));
  const layers = d3.stack().keys(kinds)(rows);
  const legend = d3.select(box).append("ul").attr("class", "legend");
  legend.selectAll("li").data(kinds).join("li").html((k) => `<i style="background:${fill(k)}"></i>${k}`);
  const peak = d3.max(rows, (row) => d3.sum(kinds, (k) => row[k])) || 1;
  const svg = d3.select(box).append("svg").attr("height", high).attr("role", "img")
    .attr("aria-label", `Memory over the step: at most ${bytes(data.peak)} of ${bytes(data.capacity)}; a table says what is alive then`);

  function draw() {
    const width = box.clientWidth, left = 62, right = 20, bottom = 24, top = 14;
    const shows = data.capacity < 1.6 * peak;
    const x = d3.scaleLinear([0, 1], [left, width - right]);
    const y = d3.scaleLinear([0, shows ? Math.max(data.capacity, peak) * 1.04 : peak * 1.08], [high - bottom, top]);
    const area = d3.area().curve(d3.curveStepAfter).x((d) => x(d.data.at)).y0((d) => y(d[0])).y1((d) => y(d[1]));
    svg.attr("viewBox", `0 0 ${width} ${high}`).selectAll("*").remove();
    svg.append("g").attr("transform", `translate(${left},0)`)
      .call(d3.axisLeft(y).tickValues(ticks(y.domain()[1])).tickFormat(bytes).tickSize(-(width - left - right))).call((g) => g.select(".domain").remove());
    svg.append("g").attr("transform", `translate(0,${high - bottom})`).call(d3.axisBottom(x).ticks(5).tickFormat((t) => Math.round(100 * t) + "%").tickSize(0).tickPadding(8));
    svg.append("g").selectAll("path").data(layers).join("path").attr("class", "layer").attr("d", area).attr("fill", (d) => fill(d.key)).attr("fill-opacity", 0.88);
    line(x(data.at), x(data.at), top, high - bottom, "ink");
    const late = x(data.at) > width - 150;
    svg.append("text").attr("x", x(data.at) + (late ? -5 : 5)).attr("y", top - 2).attr("text-anchor", late ? "end" : "start").text(`peak ${bytes(data.peak)}`);
    if (shows) {
      line(left, width - right, y(data.capacity), y(data.capacity), "bad");
      svg.append("text").attr("x", left + 6).attr("y", y(data.capacity) + 14).text(`capacity ${bytes(data.capacity)}`);
    }
    svg.append("rect").attr("x", left).attr("width", width - left - right).attr("height", high).attr("fill", "transparent")
      .on("mousemove", (event) => hover(event, x.invert(d3.pointer(event, svg.node())[0]))).on("mouseleave", hideTip);
  }

  function ticks(most) {
    const step = 2 ** Math.floor(Math.log2(most / 3));
    return d3.range(0, most, step);
  }

  function line(x1, x2, y1, y2, name) {
    svg.append("line").attr("x1", x1).attr("x2", x2).attr("y1", y1).attr("y2", y2).attr("stroke", color(name)).attr("stroke-dasharray", "4 3");
  }

  function hover(event, at) {
    const row = rows[Math.max(d3.bisector((r) => r.at).right(rows, at) - 1, 0)];
    const parts = kinds.filter((k) => row[k]).map((k) => `${k}: ${bytes(row[k])}`);
    showTip(event, [bytes(d3.sum(kinds, (k) => row[k])), ...parts].join("\n"));
  }
  redraws.push(draw);
  draw();
})();
