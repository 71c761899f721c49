"use strict";
// The best step time of a search over its evaluations.
(function () {
  document.querySelectorAll("[data-search]").forEach((box) => {
    const curve = page.searches[+box.dataset.search];
    if (!curve || !curve.length) return;
    const high = 200, svg = d3.select(box).append("svg").attr("height", high).attr("role", "img");
    const first = curve[0], last = curve[curve.length - 1];
    svg.attr("aria-label", `From ${time(first[1] * 1e6)} at the start to ${time(last[1] * 1e6)} after ${last[0]} evaluations`);

    function draw() {
      const width = box.clientWidth, left = 66, right = 14, bottom = 36, top = 10;
      const x = d3.scaleSymlog([0, Math.max(last[0], 1) * 1.15], [left, width - right]).constant(10);
      const times = curve.map((p) => p[1] * 1e6);
      const y = d3.scaleLog([d3.min(times) * 0.95, d3.max(times) * 1.05], [high - bottom, top]);
      const path = d3.line().curve(d3.curveStepAfter).x((p) => x(p[0])).y((p) => y(p[1] * 1e6));
      svg.attr("viewBox", `0 0 ${width} ${high}`).selectAll("*").remove();
      const marks = d3.ticks(...x.domain(), 4).concat([10, 100, 1000]).filter((t) => t <= x.domain()[1] && [0, 10, 100, 1000, 10000].includes(t));
      svg.append("g").attr("transform", `translate(0,${high - bottom})`).call(d3.axisBottom(x).tickValues([...new Set(marks)]).tickFormat(d3.format("d")));
      const [low, most] = y.domain(), steps = d3.range(4).map((n) => low * (most / low) ** ((n + 0.5) / 4));
      svg.append("g").attr("transform", `translate(${left},0)`)
        .call(d3.axisLeft(y).tickValues(steps).tickFormat(time).tickSize(-(width - left - right))).call((g) => g.select(".domain").remove());
      svg.append("text").attr("x", (left + width) / 2).attr("y", high - 4).attr("text-anchor", "middle").text("plans evaluated");
      svg.append("path").attr("class", "curve").attr("d", path([...curve, [x.domain()[1], last[1]]])).attr("fill", "none").attr("stroke", color("accent")).attr("stroke-width", 2);
      svg.selectAll("circle").data(curve).join("circle").attr("cx", (p) => x(p[0])).attr("cy", (p) => y(p[1] * 1e6)).attr("r", 3.5).attr("fill", color("accent"))
        .on("mousemove", (event, p) => showTip(event, `${time(p[1] * 1e6)} a step, peak ${bytes(p[2])}\nafter ${p[0]} evaluations`)).on("mouseleave", hideTip);
    }
    redraws.push(draw);
    draw();
  });
})();
