// Draws the curves of a run: data in each figure's attribute, colors from the page's own variables.
(() => {
  const drawn = new Map();
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const tone = (name) => color(name === "better" || name === "worse" ? name : "ink");
  const show = (value) =>
    value == null ? "missing" : Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 }).replace("-", "−");

  // A stop line: dashed, its value as a word at the right end.
  const stops = (lines) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = color("edge");
    ctx.fillStyle = color("muted");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "bottom";
    for (const line of lines) {
      const y = plot.valToPos(line.value, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.fillText(`${line.label} ${show(line.value)}`, bbox.left + bbox.width, y - 2 * devicePixelRatio);
    }
    ctx.restore();
  };

  const options = (figure, data, width) => {
    const series = [{}];
    const bands = [];
    for (const row of data.series) {
      const alone = row.values.flatMap((value, at) => (value != null && row.values[at - 1] == null && row.values[at + 1] == null ? [at] : []));
      const points = { show: alone.length > 0, filter: () => alone, size: 6 };
      series.push({ label: row.label, stroke: tone(row.tone), width: 2, points, spanGaps: false });
      if (row.low) {
        const side = { stroke: "transparent", points: { show: false }, spanGaps: false };
        series.push(side, { ...side });
        bands.push({ series: [series.length - 1, series.length - 2], fill: `color-mix(in srgb, ${tone(row.tone)} 12%, transparent)` });
      }
    }
    const axis = { stroke: color("muted"), grid: { stroke: color("rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const levels = data.stops.map((line) => line.value);
    return {
      width,
      height: 160,
      padding: [16, 8, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false },
        y: { range: (_, low, high) => uPlot.rangeNum(Math.min(low, ...levels), Math.max(high, ...levels), 0.1, true) },
      },
      axes: [
        { ...axis, size: 28, gap: 4 },
        { ...axis, size: 48, gap: 4, values: (_, ticks) => ticks.map(show) },
      ],
      series,
      bands,
      cursor: { y: false, sync: { key: "run" }, drag: { x: true, y: false } },
      hooks: { draw: [stops(data.stops)], setCursor: [(plot) => read(figure, data, plot.cursor.idx)] },
    };
  };

  const columns = (data) => [data.steps, ...data.series.flatMap((row) => (row.low ? [row.values, row.low, row.high] : [row.values]))];

  // The readout beside the title: the values under the cursor, or the last ones.
  const read = (figure, data, at) => {
    const here = at == null ? data.steps.length - 1 : at;
    figure.querySelectorAll(".key b").forEach((cell, index) => { cell.textContent = show(data.series[index].values[here]); });
    figure.querySelector(".step").textContent = at == null ? "" : `step ${data.steps[here]}`;
  };

  const move = (figure, data, plot) => (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const last = data.steps.length - 1;
    const at = Math.max(0, Math.min(last, (plot.cursor.idx ?? last) + by));
    plot.setCursor({ left: plot.valToPos(data.steps[at], "x"), top: 0 });
    const said = data.series.map((row) => `${row.label} ${show(row.values[at])}`).join(", ");
    document.getElementById("said").textContent = `Step ${data.steps[at]}: ${said}`;
  };

  const draw = () => {
    for (const [figure, plot] of drawn) if (!figure.isConnected) { plot.destroy(); drawn.delete(figure); }
    for (const figure of document.querySelectorAll("figure[data-plot]")) {
      drawn.get(figure)?.destroy();
      const data = JSON.parse(figure.dataset.plot);
      const box = figure.querySelector(".canvas");
      box.replaceChildren();
      const plot = new uPlot(options(figure, data, box.clientWidth), columns(data), box);
      drawn.set(figure, plot);
      box.tabIndex = 0;
      box.onkeydown = move(figure, data, plot);
    }
  };

  const resize = () => {
    for (const [figure, plot] of drawn) plot.setSize({ width: figure.querySelector(".canvas").clientWidth, height: 160 });
  };

  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(resize, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.body.addEventListener("htmx:afterSwap", draw);
  draw();
})();
